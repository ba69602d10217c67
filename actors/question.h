// A question under way between two roles: who asked whom for what, and since when. Its failure names all of that
// (invariant 11), is logged and counted, wherever it happens (B111). Those that have no answer yet can be listed: who
// waits for whom.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "actors/spawn.h"

namespace troupe {

/// Questions that came to an error or to no answer, in this process so far.
int64_t num_failed_questions();

/// One that has no answer yet.
struct OpenQuestion {
  std::string who, whom, what;
  std::chrono::system_clock::time_point asked_at;
};
/// Of this process, the oldest first.
std::vector<OpenQuestion> open_questions();
/// "trainer, step 7 waits for shard 1 (train step) since 08:51:03; ...", the oldest ten; "nobody waits" where none is.
std::string who_waits();

class Question {
 public:
  using Time = caf::actor_clock::time_point;

  /// `who` names actor, rank and step: "trainer, step 7". It is open until the last copy goes: handlers hold it.
  Question(const caf::local_actor& self, std::string who, std::string whom, std::string what);

  /// "trainer, step 7: waited 600.0 s, since 08:51:03, for shard 1 (train step): no answer within the time limit"
  std::string describe(const caf::local_actor& self, const std::string& outcome) const;
  /// The same for an error answer; logs and counts it. Where time ran out, it also logs who else waits for whom.
  std::string failed(const caf::local_actor& self, const caf::error& error) const;

 private:
  class Entry;
  std::shared_ptr<const Entry> entry_;
  Time asked_;
};

/// True where the error says that time ran out.
bool is_timeout(const caf::error& error);
/// True where the one who was asked had died before it answered.
bool is_receiver_gone(const caf::error& error);

}  // namespace troupe
