// A question under way between two roles: who asked whom for what, and since when. Its failure names all of that
// (invariant 11), is logged and counted, wherever it happens (B111).
#pragma once

#include <chrono>
#include <string>

#include "actors/spawn.h"

namespace troupe {

/// Questions that came to an error or to no answer, in this process so far.
int64_t num_failed_questions();

class Question {
 public:
  using Time = caf::actor_clock::time_point;

  /// `who` names actor, rank and step: "trainer, step 7".
  Question(const caf::local_actor& self, std::string who, std::string whom, std::string what)
      : who_(std::move(who)),
        whom_(std::move(whom)),
        what_(std::move(what)),
        asked_(self.clock().now()),
        asked_at_(std::chrono::system_clock::now()) {}

  /// "trainer, step 7: waited 600.0 s, since 08:51:03, for shard 1 (train step): no answer within the time limit"
  std::string describe(const caf::local_actor& self, const std::string& outcome) const;
  /// The same for an error answer; logs and counts it.
  std::string failed(const caf::local_actor& self, const caf::error& error) const;

 private:
  std::string who_, whom_, what_;
  Time asked_;
  std::chrono::system_clock::time_point asked_at_;
};

/// True where the error says that time ran out.
bool is_timeout(const caf::error& error);
/// True where the one who was asked had died before it answered.
bool is_receiver_gone(const caf::error& error);

}  // namespace troupe
