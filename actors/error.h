// Error codes of the actors, and the text of any CAF error. Nobody else calls system.render.
#pragma once

#include <caf/actor_system_config.hpp>
#include <caf/error.hpp>
#include <caf/make_message.hpp>
#include <cstdint>
#include <string>

namespace caf {
class actor_system;
}

namespace troupe {

enum class ec : uint8_t {
  none = 0,
  failed,       // the role cannot go on; the context says why
  interrupted,  // the run is being stopped by the user
};
std::string to_string(ec code);

/// "shard 0, step 3: ..." for our errors, CAF's own text otherwise.
std::string describe_error(const caf::error& error, const caf::actor_system& system);
/// Makes our codes printable.
void add_error_text(caf::actor_system_config& config);

}  // namespace troupe

CAF_ERROR_CODE_ENUM(troupe::ec, "troupe")
