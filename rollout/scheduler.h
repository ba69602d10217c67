// Which rows the next step computes: continuous batching with chunked prefill, shared prefixes and preemption.
//
//   add --> waiting --admit--> running (prefill in chunks, then one token a step) --> finished
//              ^                  |
//              +---- preempted ---+   its blocks are given up; its tokens are computed again when it comes back
//
// One step carries the next token of every decoding sequence together with up to `prefill_chunk_tokens` rows of
// prompts. A prompt's full blocks can be shared as soon as their rows are part of a step: in each layer all rows write
// their keys and values before any row attends. A sequence with the same tokens as one whose prompt ends in this step
// needs no row at all (the samples of a group): it draws from the same logits and takes a copy of the last, partly
// filled block.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "rollout/block_manager.h"
#include "rollout/engine.h"
#include "rollout/forward_pass.h"

namespace troupe {

/// One request on its way.
struct Sequence {
  GenerationRequest request;
  std::vector<int32_t> tokens;   // prompt and what was sampled so far
  std::vector<float> log_probs;  // of the sampled tokens
  std::vector<VersionRun> versions;
  std::string text;  // bytes of the sampled tokens; kept only where there are stop strings
  std::vector<int32_t> blocks;
  int32_t state = -1;          // its slot of recurrent state while it runs
  int64_t num_computed = 0;    // tokens whose keys and values are in the cache, rows of the step under way included
  int64_t num_published = 0;   // full blocks that are findable (or equal to findable ones)
  uint64_t last_identity = 0;  // of the last of these
  int64_t cache_version = -1;  // weight version of all its keys and values; -1 where they are mixed
  bool resumed = false;        // its tokens were in the cache before

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

/// What one step computes. Draw i belongs to sequence drawn[i].
struct StepPlan {
  std::vector<Row> rows;
  std::vector<Draw> draws;  // rule and uniform are filled in by the engine
  std::vector<Sequence*> drawn;
  struct BlockCopy {
    int32_t from = 0, to = 0;
    int64_t num_tokens = 0;
  };
  std::vector<BlockCopy> copies;  // after the rows were computed
  struct StateCopy {
    int32_t from = 0, to = 0;
  };
  std::vector<StateCopy> state_copies;  // likewise, in this order
  int64_t num_prefill_rows = 0, num_decode_rows = 0;
};

struct SchedulerOptions {
  int32_t max_sequences = 0;
  int32_t prefill_chunk_tokens = 0;
  int64_t num_blocks = 0;
  int32_t block_tokens = 0;
  bool has_states = false;  // sequences have recurrent state: what blocks hold of a prefix is not enough to go on from
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, EngineMetrics& metrics);

  /// Last in its line: that of what has tokens already, which goes first, or that of what is new.
  void add(std::unique_ptr<Sequence> sequence);
  /// Plans the next step under weight version `version`; empty where nothing can run. `admit`: new requests may enter
  /// (preempted ones always may). Throws Error where a request cannot fit into the whole cache.
  StepPlan plan(int64_t version, bool admit);
  /// Takes a running sequence out and frees its blocks.
  std::unique_ptr<Sequence> finish(Sequence* sequence);
  /// Drops every sequence of this id; false where there is none.
  bool cancel(uint64_t sample_id);
  std::vector<std::unique_ptr<Sequence>> take_all();
  /// Running and waiting ones, in this order.
  std::vector<const Sequence*> all() const;

  /// New weights: nothing published is found any more. `recompute`: running sequences go back to waiting and rebuild
  /// their cache; otherwise they keep it, of mixed versions from now on.
  void weights_changed(bool recompute);

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  /// Neither running nor preempted: nothing depends on the weights in use.
  bool nothing_started() const;
  const BlockManager& blocks() const { return blocks_; }

 private:
  bool make_room(size_t index, int64_t num_tokens);
  void preempt_last();
  void release_blocks(Sequence& sequence);
  void take_state(Sequence& sequence);
  bool admit_next(StepPlan& plan, int64_t version, int64_t& budget);
  bool follow(Sequence& sequence, StepPlan& plan, int64_t version);
  void find_prefix(Sequence& sequence, int64_t version);
  void plan_rows(Sequence& sequence, int64_t num_rows, StepPlan& plan, int64_t version);
  void publish(Sequence& sequence, int64_t version);

  SchedulerOptions options_;
  EngineMetrics& metrics_;
  BlockManager blocks_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // those with tokens (`resumed`) first
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  std::vector<int32_t> free_states_;                // slots that no running sequence has
};

}  // namespace troupe
