// Admission: how many groups may be under way, and which worker may make them, so that staleness is bounded.
//
//   admit(g) at published version v ──> tokens of g are of version >= v (may_serve) ──> batch ──> train(groups, v+1)
//   frees
//                                                                                  └─> drop(g, counted) frees
//
// With P groups a train step and lag S at most (S+1)*P groups are live. When g is admitted at version v, at most
// (S+1)*P - 1 live groups stand before it, so g enters a batch while the version is at most v + S: every token of the
// batch that is trained at version k is at least of version k - S. A window of W groups lets at most W - 1 others
// overtake g: the bound is S + ceil((W-1)/P). Plain logic: knows no actor and no clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

struct AdmissionOptions {
  int64_t num_groups_per_step = 1;  // P
  int64_t max_lag = 0;              // S
  int64_t window = 1;               // W
};

/// One admitted group: its place in the order, and the version that was published when it was admitted.
struct Admission {
  uint64_t group = 0;
  int64_t index = 0;
  int64_t version = 0;
  bool operator==(const Admission&) const = default;
};

class AdmissionLedger {
 public:
  /// Throws UsageError on options out of range.
  explicit AdmissionLedger(AdmissionOptions options, int64_t version = 0);

  /// Most groups that may be live.
  int64_t capacity() const { return (options_.max_lag + 1) * options_.num_groups_per_step; }
  int64_t num_live() const { return static_cast<int64_t>(live_.size()); }
  int64_t num_free() const { return capacity() - num_live(); }
  /// The most versions a token may be behind the weights it trains.
  int64_t staleness_bound() const;
  int64_t version() const { return version_; }

  /// Takes a slot. Throws Error where none is free or the group is live.
  const Admission& admit(uint64_t group);
  /// Puts back a group of an earlier run, at its old place.
  void restore(const Admission& admission);
  /// The batch of these groups was trained and the result published as `version`: frees their slots.
  void train(const std::vector<uint64_t>& groups, int64_t version);
  /// A named filter dropped the group: frees its slot and counts the reason.
  void drop(uint64_t group, const std::string& reason);

  bool is_live(uint64_t group) const { return live_.contains(group); }
  const Admission& at(uint64_t group) const;
  /// True where a worker that acknowledged `version` may make tokens for the group.
  bool may_serve(uint64_t group, int64_t acknowledged) const { return acknowledged >= at(group).version; }
  /// Live groups in the order of their admission.
  std::vector<Admission> in_order() const;
  int64_t next_index() const { return next_index_; }
  void set_next_index(int64_t index) { next_index_ = index; }
  const std::map<std::string, int64_t>& dropped() const { return dropped_; }
  void set_dropped(std::map<std::string, int64_t> counts) { dropped_ = std::move(counts); }

 private:
  void remove(uint64_t group, const char* why);

  AdmissionOptions options_;
  int64_t version_ = 0, next_index_ = 0;
  std::map<uint64_t, Admission> live_;
  std::map<std::string, int64_t> dropped_;
};

}  // namespace troupe
