// The director actor: gives out prompts within the slots of admission, re-issues lost work, frees slots, keeps the
// run's state and writes its record. A thin shell around AdmissionLedger and WorkLedger.
#pragma once

#include <functional>

#include "actors/admission.h"
#include "actors/interfaces.h"
#include "actors/run_recorder.h"
#include "actors/unfinished.h"
#include "actors/weight_board.h"
#include "actors/work_ledger.h"

namespace troupe {

struct EncodedPrompt {
  std::vector<int32_t> tokens;
  std::string metadata_json;
};
/// A prompt by id, as tokens; throws Error where it cannot be encoded (the group is dropped, counted).
using PromptEncoder = std::function<EncodedPrompt(uint64_t prompt_id)>;

/// The director's half of a checkpoint (state.json).
struct RunState {
  int64_t step = 0;  // also the policy version
  uint64_t next_prompt = 0;
  int64_t next_index = 0;
  std::vector<Admission> live;                             // admitted, not yet trained or dropped; in order
  std::map<std::string, int64_t> dropped;                  // groups by the filter that dropped them
  nlohmann::json pending_drops = nlohmann::json::array();  // dropped after the last line of the journal
  int64_t num_given_up = 0;                                // samples
  double time_s = 0;
  double best_score = 0;
  bool has_best_score = false;
  int64_t evaluated_step = -1;  // the last one with a score: what an interrupt took, a resume makes up for
  int64_t num_resumes = 0;
};
nlohmann::json to_json(const RunState& state);
/// Throws Error naming the field that is missing or wrong.
RunState parse_run_state(const nlohmann::json& json);

struct DirectorSetup {
  AdmissionOptions admission;
  WorkLedgerOptions work;
  int64_t num_samples_per_group = 1;
  /// So many groups in a row without one finished sample end the run, whatever the trainer does meanwhile.
  int64_t max_failed_groups = 64;
  int64_t num_steps = 1;
  int64_t save_interval = 0;  // 0: never
  bool save_at_end = false;
  bool evaluate = false;  // at start and end
  int64_t evaluation_interval = 0;
  bool keep_best = false;
  RunState state;  // where to begin
  std::map<uint64_t, std::vector<uint64_t>>
      finished;                  // resumed groups: their samples that are done (or given up) already
  UnfinishedSamples unfinished;  // of the resumed run's workers: what was made of samples that are not done
  PromptEncoder encode;
  std::shared_ptr<WeightBoard> board;
  std::shared_ptr<RunRecorder> recorder;
  std::shared_ptr<ObserverGate> observer;
  std::function<void()> stop_evaluation;  // ends the one under way early; may be empty
  std::chrono::milliseconds limit{600'000};
  /// Where workers of other processes may join: for so long the run goes on without any; 0: no limit.
  std::chrono::milliseconds wait_for_workers{0};
};

/// `evaluator` may be invalid where nothing is evaluated.
director_actor spawn_director(caf::actor_system& system, buffer_actor buffer, evaluator_actor evaluator,
                              supervisor_actor supervisor, DirectorSetup setup);

}  // namespace troupe
