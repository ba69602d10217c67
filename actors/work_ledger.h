// Who works on what: workers with their credit, samples with their attempts. The director's book of outstanding work.
//
//   add_group ──> waiting ──issue──> at a worker ──generated──> being scored ──finished──> done
//                    ▲                   │                          │
//                    └── worker lost ────┴──── failed (counted) ────┘──> given up after max_attempts
//
// A group goes to one worker as a whole (its prompt's KV cache is shared), a retry sample by sample. Retries keep the
// sample id; the attempt beside it grows. Plain logic: knows no actor and no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

enum class GroupToWorker { kLeastLoaded, kSticky, kFixed };
/// Throws UsageError with the known names.
GroupToWorker parse_group_to_worker(const std::string& name);

struct WorkLedgerOptions {
  GroupToWorker group_to_worker = GroupToWorker::kLeastLoaded;
  int num_workers = 1;   // for sticky and fixed: worker = group % num_workers
  int max_attempts = 3;  // failures of one sample before it is given up
  int max_losses = 8;    // workers that may die under one sample before it is given up
};

/// One dispatch: samples of one group for one worker.
struct WorkIssue {
  int worker = 0;
  uint64_t group = 0;
  int64_t min_version = 0;
  std::vector<uint64_t> sample_ids;
  std::vector<uint32_t> attempts;
};

struct GivenUp {
  uint64_t sample_id = 0;
  std::string reason;
};

class WorkLedger {
 public:
  explicit WorkLedger(WorkLedgerOptions options) : options_(options) {}

  /// A worker with room for `credit` samples that computes with `version` (-1: no weights yet). An id comes once only:
  /// a restarted worker joins anew after its loss was told.
  void join(int worker, int credit, int64_t version);
  /// The worker is gone: its unfinished samples wait again. Returns how many; those out of patience are in
  /// take_given_up. `is_loss`: it died; who leaves of its own accord costs no patience.
  int64_t leave(int worker, bool is_loss = true);
  /// The worker has applied a version.
  void acknowledge(int worker, int64_t version);

  /// New work in order of admission: `missing` sample ids of the group; only workers at `min_version` or newer get
  /// them.
  void add_group(uint64_t group, int64_t order, int64_t min_version, const std::vector<uint64_t>& missing);
  /// Drops what is left of a group (it was trained or dropped).
  void remove_group(uint64_t group);
  /// Everything that can be sent now, oldest group first; counts it as sent.
  std::vector<WorkIssue> issue();

  /// The worker has made the sample (or failed to): its credit is free again.
  void generated(int worker, uint64_t sample_id, uint32_t attempt);
  /// The sample's answer was accepted; whatever other attempt is under way no longer counts.
  void finished(uint64_t sample_id);
  /// This attempt came to nothing (generation or scoring failed): the sample waits again or is given up. Stale attempts
  /// are ignored.
  void failed(uint64_t sample_id, uint32_t attempt, const std::string& reason);
  std::vector<GivenUp> take_given_up();

  int num_workers() const { return static_cast<int>(workers_.size()); }
  bool has_worker(int worker) const { return workers_.contains(worker); }
  int64_t version_of(int worker) const;  // acknowledged; -1 where it is not here
  int64_t oldest_acknowledged() const;   // -1 without workers
  /// Samples at a worker, in generation.
  int64_t num_at(int worker) const;
  int64_t num_waiting() const;
  int64_t num_outstanding() const;  // waiting, at workers, being scored
  int64_t num_reissued() const { return num_reissued_; }
  int64_t num_failures() const { return num_failures_; }
  /// For the text of a time-out: who holds which samples.
  std::string describe() const;

 private:
  enum class State { kWaiting, kAtWorker, kScoring };
  struct Sample {
    State state = State::kWaiting;
    uint32_t next_attempt = 0;
    int worker = -1;
    int failures = 0, losses = 0;
  };
  struct Group {
    int64_t order = 0, min_version = 0;
    std::map<uint64_t, Sample> samples;
    int64_t num_waiting = 0;  // of them
  };
  struct Worker {
    int credit = 0, capacity = 0;
    int64_t version = -1;
    std::map<uint64_t, uint32_t> held;  // sample id -> attempt, in generation
  };
  Sample* find(uint64_t sample_id);
  void retry(uint64_t sample_id, Sample& sample, const std::string& reason);
  void wait_again(Group& group, Sample& sample);
  void erase(Group& group, uint64_t sample_id);
  void note_waiting(Group& group, int64_t change);
  std::optional<int> choose(uint64_t group, const Group& work, int64_t num_samples) const;
  bool can_take(const Worker& worker, const Group& work, int64_t num_samples) const;

  WorkLedgerOptions options_;
  std::map<int, Worker> workers_;
  std::map<uint64_t, Group> groups_;
  std::map<int64_t, uint64_t> order_;    // order of admission -> group
  std::map<int64_t, uint64_t> waiting_;  // of these, groups with samples that wait
  std::vector<GivenUp> given_up_;
  int64_t num_reissued_ = 0, num_failures_ = 0;
};

}  // namespace troupe
