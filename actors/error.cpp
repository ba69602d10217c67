#include "actors/error.h"

#include <caf/actor_system.hpp>
#include <caf/atom.hpp>
#include <caf/exit_reason.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

namespace troupe {

std::string to_string(ec code) {
  switch (code) {
    case ec::none:
      return "none";
    case ec::failed:
      return "failed";
    case ec::interrupted:
      return "interrupted";
  }
  return "unknown";
}

std::string describe_error(const caf::error& error, const caf::actor_system& system) {
  if (!error) return "it ended of its own accord";  // an actor's normal exit; such an error has no category to ask for
  if (error.category() == caf::atom("troupe") && !error.context().empty() &&
      error.context().match_element<std::string>(0))
    return error.context().get_as<std::string>(0);
  if (error == caf::sec::request_timeout) return "no answer within the time limit";
  if (error == caf::sec::request_receiver_down) return "the one who was asked is gone";
  if (error == caf::exit_reason::remote_link_unreachable) return "its process, or the way to it, is gone";
  if (error == caf::exit_reason::user_shutdown) return "it was asked to end";
  return system.render(error);
}

void add_error_text(caf::actor_system_config& config) {
  config.add_error_category(caf::atom("troupe"), [](uint8_t code, caf::atom_value, const caf::message& context) {
    return to_string(static_cast<ec>(code)) + (context.empty() ? std::string() : ": " + caf::to_string(context));
  });
}

}  // namespace troupe
