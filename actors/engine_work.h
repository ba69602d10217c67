// The generation engine as the rollout actor drives it, and the evaluation that runs one to its end.
#pragma once

#include "actors/model_source.h"
#include "actors/rollout.h"
#include "rollout/turns.h"

namespace troupe {

/// The sample with index `baseline_index` of its group is made greedily (-1: none is).
std::unique_ptr<RolloutWork> make_engine_work(std::shared_ptr<const ModelSource> model, EngineOptions options,
                                              SamplingOptions sampling, int64_t baseline_index, TurnSetup turns = {});

/// The environment's half that the model brings.
TurnSetup turn_setup(const ModelSource& model, const EnvironmentOptions& environment);

/// The data's own fields, and the prompt as "messages" where they hold none of that name: what rewards and environments
/// are told.
std::string sample_metadata(const Prompt& prompt);

/// Scores of the board's newest weights on held-out prompts: "evaluation/score" (mean), "evaluation/avg@k",
/// "evaluation/pass@k" (share of prompts with a score of at least 1 in k samples), counts and time; with an environment
/// "evaluation/num_turns" and "evaluation/answered_frac" (samples whose first turn was answered). An engine of its own.
/// Throws Error where nothing got a score, where time ran out, and where `stop_requested` ended it.
nlohmann::json evaluate_weights(const ModelSource& model, WeightBoard& board, const EvaluationOptions& evaluation,
                                EngineOptions engine, SamplingOptions sampling, const TurnSetup& turns,
                                const std::vector<RewardOptions>& rewards, double timeout_s,
                                const std::function<bool()>& stop_requested);

}  // namespace troupe
