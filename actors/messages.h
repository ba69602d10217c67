// Everything that actors say to each other: message structs (of joining: join.h), atoms, type ids. Structs named
// Local... hold pointers and never leave the process; all others round-trip through CAF's serializer
// (tests/actors/messages_test.cpp).
#pragma once

#include <caf/meta/type_name.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/atom.hpp>
#include <caf/fwd.hpp>
#include <caf/type_id.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/join.h"

namespace troupe {

/// A trajectory (base/trajectory.h) or another packed object; bytes in a string because CAF copies strings as a whole.
struct Packed {
  std::string bytes;
  bool operator==(const Packed&) const = default;
};

/// Samples of one group for one worker.
struct WorkOrder {
  uint64_t group = 0;
  int64_t min_version = 0;
  std::vector<int32_t> prompt_tokens;
  std::string metadata_json;
  std::vector<uint64_t> sample_ids;
  std::vector<uint32_t> attempts;
  /// Empty, or one a sample: "", or what was made of it before the run was resumed (actors/unfinished.h).
  std::vector<std::string> so_far;
  bool operator==(const WorkOrder&) const = default;
};

/// What became of one attempt at a worker; `failure` empty: generated.
struct SampleReport {
  int32_t worker = 0;
  uint64_t sample_id = 0;
  uint32_t attempt = 0;
  std::string failure;
  bool operator==(const SampleReport&) const = default;
};

/// A worker's counters since its start.
struct WorkerStatus {
  int32_t worker = 0;
  int64_t version = -1;
  int64_t decode_steps = 0, decoded_tokens = 0, prefill_tokens = 0, prefill_tokens_saved = 0;
  int64_t preemptions = 0, recomputed_tokens = 0, weight_updates = 0;
  double busy_s = 0, prefill_s = 0, decode_s = 0;
  bool operator==(const WorkerStatus&) const = default;
};

/// A group's place in the buffer.
struct GroupTicket {
  uint64_t group = 0;
  int64_t index = 0;
  int64_t num_samples = 0;
  bool operator==(const GroupTicket&) const = default;
};

/// A group that a named filter dropped, with what became of its samples.
struct GroupDrop {
  uint64_t group = 0;
  std::string reason;
  std::vector<uint64_t> sample_ids;
  std::vector<uint32_t> attempts;
  std::vector<uint64_t> given_up_ids;  // those that never came
  std::vector<std::string> given_up_reasons;
  bool operator==(const GroupDrop&) const = default;
};

/// A train step is done and its version published.
struct StepReport {
  int64_t step = 0;              // count of train steps so far
  int64_t version = 0;           // that was published
  std::vector<uint64_t> groups;  // places of the batch (trained, or left out by "drop")
  std::string metrics_json;
  bool operator==(const StepReport&) const = default;
};

/// What the trainer does next.
struct StepDecision {
  bool train = false;        // ask for the next batch
  bool validate = false;     // pre-training: validation loss first
  bool save = false;         // write a checkpoint with the state below
  bool export_best = false;  // write <folder>/best
  bool stop = false;
  bool interrupted = false;
  std::string state_json;  // of the director, for the checkpoint
  Packed groups;           // of the buffer and of the workers, for the checkpoint
  bool operator==(const StepDecision&) const = default;
};

struct TrainBatch;  // actors/train_batch.h
struct LocalBatch {
  std::shared_ptr<const TrainBatch> batch;
};
/// A number a token of each trajectory of a batch: [S][L], 0 where nothing was sampled.
using TokenNumbers = std::vector<std::vector<float>>;
struct LocalNumbers {
  std::shared_ptr<const TokenNumbers> numbers;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Packed& x) {
  return f(caf::meta::type_name("troupe::Packed"), x.bytes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, WorkOrder& x) {
  return f(caf::meta::type_name("troupe::WorkOrder"), x.group, x.min_version, x.prompt_tokens, x.metadata_json,
           x.sample_ids, x.attempts, x.so_far);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SampleReport& x) {
  return f(caf::meta::type_name("troupe::SampleReport"), x.worker, x.sample_id, x.attempt, x.failure);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, WorkerStatus& x) {
  return f(caf::meta::type_name("troupe::WorkerStatus"), x.worker, x.version, x.decode_steps, x.decoded_tokens,
           x.prefill_tokens, x.prefill_tokens_saved, x.preemptions, x.recomputed_tokens, x.weight_updates, x.busy_s,
           x.prefill_s, x.decode_s);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GroupTicket& x) {
  return f(caf::meta::type_name("troupe::GroupTicket"), x.group, x.index, x.num_samples);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, GroupDrop& x) {
  return f(caf::meta::type_name("troupe::GroupDrop"), x.group, x.reason, x.sample_ids, x.attempts, x.given_up_ids,
           x.given_up_reasons);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepReport& x) {
  return f(caf::meta::type_name("troupe::StepReport"), x.step, x.version, x.groups, x.metrics_json);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepDecision& x) {
  return f(caf::meta::type_name("troupe::StepDecision"), x.train, x.validate, x.save, x.export_best, x.stop,
           x.interrupted, x.state_json, x.groups);
}

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::LocalBatch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::LocalNumbers)

// Names travel, not numbers: they are a promise to other builds.
CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)

  CAF_ADD_TYPE_ID(troupe, (troupe::Packed))
  CAF_ADD_TYPE_ID(troupe, (troupe::WorkOrder))
  CAF_ADD_TYPE_ID(troupe, (troupe::SampleReport))
  CAF_ADD_TYPE_ID(troupe, (troupe::WorkerStatus))
  CAF_ADD_TYPE_ID(troupe, (troupe::GroupTicket))
  CAF_ADD_TYPE_ID(troupe, (troupe::GroupDrop))
  CAF_ADD_TYPE_ID(troupe, (troupe::StepReport))
  CAF_ADD_TYPE_ID(troupe, (troupe::StepDecision))
  CAF_ADD_TYPE_ID(troupe, (troupe::Hello))
  CAF_ADD_TYPE_ID(troupe, (troupe::Welcome))

  CAF_ADD_ATOM(troupe, troupe::atom, admit, "admit")
  CAF_ADD_ATOM(troupe, troupe::atom, applied, "applied")
  CAF_ADD_ATOM(troupe, troupe::atom, arrive, "arrive")
  CAF_ADD_ATOM(troupe, troupe::atom, batch, "batch")
  CAF_ADD_ATOM(troupe, troupe::atom, decide, "decide")
  CAF_ADD_ATOM(troupe, troupe::atom, dropped, "dropped")
  CAF_ADD_ATOM(troupe, troupe::atom, ended, "ended")
  CAF_ADD_ATOM(troupe, troupe::atom, evaluate, "evaluate")
  CAF_ADD_ATOM(troupe, troupe::atom, failed, "failed")
  CAF_ADD_ATOM(troupe, troupe::atom, finished, "finished")
  CAF_ADD_ATOM(troupe, troupe::atom, generated, "generated")
  CAF_ADD_ATOM(troupe, troupe::atom, give_up, "give up")
  CAF_ADD_ATOM(troupe, troupe::atom, hello, "hello")
  CAF_ADD_ATOM(troupe, troupe::atom, interrupt, "interrupt")
  CAF_ADD_ATOM(troupe, troupe::atom, judge, "judge")
  CAF_ADD_ATOM(troupe, troupe::atom, leave, "leave")
  CAF_ADD_ATOM(troupe, troupe::atom, load, "load")
  CAF_ADD_ATOM(troupe, troupe::atom, next, "next")
  CAF_ADD_ATOM(troupe, troupe::atom, overdue, "overdue")
  CAF_ADD_ATOM(troupe, troupe::atom, progress, "progress")
  CAF_ADD_ATOM(troupe, troupe::atom, save, "save")
  CAF_ADD_ATOM(troupe, troupe::atom, score, "score")
  CAF_ADD_ATOM(troupe, troupe::atom, snapshot, "snapshot")
  CAF_ADD_ATOM(troupe, troupe::atom, status, "status")
  CAF_ADD_ATOM(troupe, troupe::atom, store, "store")
  CAF_ADD_ATOM(troupe, troupe::atom, train, "train")
  CAF_ADD_ATOM(troupe, troupe::atom, trained, "trained")
  CAF_ADD_ATOM(troupe, troupe::atom, validate, "validate")
  CAF_ADD_ATOM(troupe, troupe::atom, weights, "weights")
  CAF_ADD_ATOM(troupe, troupe::atom, work, "work")
  CAF_ADD_ATOM(troupe, troupe::atom, write, "write")

CAF_END_TYPE_ID_BLOCK(troupe)
