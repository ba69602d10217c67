// Asking a process of the user's, usually Python, for rewards and environments (protocol "Remote reward or
// environment"). Declared here, where rewards and environments need it; actors/remote_service.cpp is its ZeroMQ.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe {

struct RemoteOptions {
  std::string address;      // "tcp://HOST:PORT" or "ipc://PATH"; empty with a command: chosen, and told to it
  std::string command;      // started and restarted by the run (in sh), with TROUPE_ADDRESS set; empty: somebody else's
  double timeout_s = 10;    // of one answer, from the moment when the question is on its way
  double reconnect_s = 60;  // how long a process that is not there is waited for
  int num_parallel = 8;     // questions under way at a time
  bool operator==(const RemoteOptions&) const = default;
};

class RemoteService {
 public:
  virtual ~RemoteService() = default;
  /// One question, one answer: the item that belongs to it, an object without "error". Waits for the process to be
  /// there, and asks again where it dies meanwhile. Throws Error with the reason why there is no answer. Thread-safe.
  virtual nlohmann::json ask(const std::string& op, const nlohmann::json& item) = 0;

  /// A process that dies on a question is asked it again this often.
  static constexpr int kMostSendings = 3;
  /// The longest that a question takes once it is its turn.
  static double longest_s(const RemoteOptions& options) {
    return kMostSendings * options.timeout_s + options.reconnect_s;
  }
};

/// One service for equal options, for as long as somebody holds it.
std::shared_ptr<RemoteService> open_remote_service(const RemoteOptions& options);
/// Throws UsageError naming the setting, with `owner` ("reward judge") in front.
void check_remote_options(const RemoteOptions& options, const std::string& owner);

using RemoteServiceFactory = std::function<std::shared_ptr<RemoteService>(const RemoteOptions&)>;
/// Who brings the wire says so once, before any run.
void set_remote_service_factory(RemoteServiceFactory factory);

}  // namespace troupe
