// The wire of remote rewards and environments: one ZeroMQ DEALER with a thread of its own, which many callers share.
//
//   ask() ──question──> waiting ──connected, room──> sent ──answer──> ask() returns
//                          ^                           ├── time limit ──> failure
//                          └── the process is gone ────┘   asked again when it is back, three times at most
//
// A process that the run started itself is restarted after a growing pause, five times within five minutes; one that
// says nothing at all for a question's whole time limit is taken for frozen and restarted too. Somebody else's process
// is waited for. Answers that belong to no question under way (late, another id, no JSON) are counted and named where
// the question then fails.
#pragma once

#include <thread>

#include "actors/restart_policy.h"
#include "rollout/remote.h"

namespace troupe {

/// How often each thing happened, since the service was opened.
struct RemoteCounts {
  int64_t num_asked = 0, num_answered = 0, num_timeouts = 0, num_strays = 0, num_losses = 0, num_starts = 0;
};

class ZmqRemoteService : public RemoteService {
 public:
  explicit ZmqRemoteService(RemoteOptions options, RestartOptions restarts = {});
  ~ZmqRemoteService() override;
  nlohmann::json ask(const std::string& op, const nlohmann::json& item) override;
  RemoteCounts counts() const;
  /// Of the process that the run started; -1 where there is none.
  pid_t process_id() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

/// Makes remote rewards and environments available to this program (rollout/remote.h).
void use_zmq_for_remote_services();

}  // namespace troupe
