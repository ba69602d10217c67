#include "rollout/remote.h"

#include <mutex>
#include <vector>

#include "base/error.h"

namespace troupe {
namespace {

struct Open {
  RemoteOptions options;
  std::weak_ptr<RemoteService> service;
};

std::mutex mutex;
RemoteServiceFactory& factory() {
  static RemoteServiceFactory made;
  return made;
}
std::vector<Open>& open_services() {
  static std::vector<Open> list;
  return list;
}

}  // namespace

void set_remote_service_factory(RemoteServiceFactory made) {
  const std::scoped_lock lock(mutex);
  factory() = std::move(made);
}

std::shared_ptr<RemoteService> open_remote_service(const RemoteOptions& options) {
  const std::scoped_lock lock(mutex);
  auto& list = open_services();
  std::erase_if(list, [](const Open& open) { return open.service.expired(); });
  for (const auto& open : list)
    if (open.options == options)
      if (auto service = open.service.lock()) return service;
  require(factory() != nullptr, "remote rewards and environments: this program has no transport for them");
  auto service = factory()(options);
  list.push_back({options, service});
  return service;
}

void check_remote_options(const RemoteOptions& options, const std::string& owner) {
  const auto& address = options.address;
  if (address.empty() && options.command.empty())
    throw UsageError(
        concat(owner, ": needs an address (tcp://HOST:PORT or ipc://PATH) or a command that Troupe starts"));
  if (!address.empty() && !address.starts_with("tcp://") && !address.starts_with("ipc://"))
    throw UsageError(concat(owner, ": address = ", address, " is neither tcp://HOST:PORT nor ipc://PATH"));
  if (!(options.reconnect_s > 0))
    throw UsageError(concat(owner, ": reconnect_s = ", options.reconnect_s, " is not above 0"));
  if (options.num_parallel < 1 || options.num_parallel > 256)
    throw UsageError(concat(owner, ": num_parallel = ", options.num_parallel, " is not within 1 and 256"));
}

}  // namespace troupe
