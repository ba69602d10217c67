// One way to make an actor whose state is a class, and the handlers that every long-lived actor has. Hides what changes
// between CAF 0.17 and 1.0.
#pragma once

#include <caf/all.hpp>

#include "actors/error.h"
#include "actors/interfaces.h"
#include "base/log.h"

namespace troupe {

/// Error answers that reached an actor outside of a request, in this process so far (B111).
int64_t num_stray_errors();
void count_stray_error();

/// Errors that nobody asked for are logged and counted, never fatal; exceptions end the actor with their text as
/// reason.
template <class Pointer>
void guard(Pointer self) {
  self->set_error_handler([self](caf::scheduled_actor*, caf::error& error) {
    count_stray_error();
    log::warning(self->state.name, ": an error message arrived: ", describe_error(error, self->system()));
  });
  self->set_exception_handler([self](caf::scheduled_actor*, std::exception_ptr& exception) -> caf::error {
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& caught) {
      return caf::make_error(ec::failed, std::string(self->state.name) + ": " + caught.what());
    } catch (...) {
      return caf::make_error(ec::failed, std::string(self->state.name) + ": unknown exception");
    }
  });
}

/// State needs `explicit State(Handle::pointer)`-like construction from its stateful pointer and
/// `Handle::behavior_type start(args...)`. The constructor runs on the spawner's thread, `start` on the actor's own.
template <class Handle, class State, caf::spawn_options Os = caf::no_spawn_options, class Host, class... Ts>
Handle spawn_state(Host& host, Ts... xs) {
  using pointer = typename Handle::template stateful_pointer<State>;
  return host.template spawn<Os>(
      [](pointer self, Ts... ys) -> typename Handle::behavior_type {
        guard(self);
        return self->state.start(std::move(ys)...);
      },
      std::move(xs)...);
}

/// As above, with its own thread (blocking work: an engine, a rank) unless a test wants virtual time.
template <class Handle, class State, class Host, class... Ts>
Handle spawn_worker(bool detached, Host& host, Ts... xs) {
  return detached ? spawn_state<Handle, State, caf::detached>(host, std::move(xs)...)
                  : spawn_state<Handle, State>(host, std::move(xs)...);
}

}  // namespace troupe
