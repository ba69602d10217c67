#include "rollout/resume.h"

#include <algorithm>

namespace troupe {

bool can_go_on(const GenerationRequest& request, const EngineOptions& options, int64_t vocab_size, int64_t version) {
  const auto& so_far = *request.so_far;
  const auto& prompt = request.prompt_tokens;
  const auto num_sampled = static_cast<int64_t>(so_far.tokens.size()) - so_far.prompt_length;
  if (so_far.num_turns != 1 || num_sampled < 1 || num_sampled >= request.sampling.max_new_tokens ||
      static_cast<int64_t>(so_far.tokens.size()) >= options.max_context_length ||
      so_far.prompt_length != static_cast<int32_t>(prompt.size()) ||
      !std::equal(prompt.begin(), prompt.end(), so_far.tokens.begin()))
    return false;
  for (const int32_t token : so_far.tokens)
    if (token < 0 || token >= vocab_size) return false;
  return options.on_weights != OnWeights::kFinish || (version >= 0 && so_far.versions.back().version == version);
}

void go_on(Trajectory& so_far, const SamplingOptions& sampling, const Tokenizer* tokenizer, Sequence& sequence) {
  sequence.log_probs.assign(so_far.log_probs.begin() + so_far.prompt_length, so_far.log_probs.end());
  sequence.versions = std::move(so_far.versions);
  sequence.tokens = std::move(so_far.tokens);
  sequence.resumed = true;
  if (sampling.stop.empty()) return;
  for (auto token = sequence.tokens.begin() + so_far.prompt_length; token != sequence.tokens.end(); ++token)
    if (!tokenizer->is_special(*token)) sequence.text += tokenizer->token_bytes(*token);
}

Trajectory describe(const Sequence& sequence) {
  const auto& request = sequence.request;
  Trajectory trajectory;
  if (request.turns_before != nullptr) {
    trajectory = *request.turns_before;
    ++trajectory.num_turns;
  } else {
    trajectory.sample_id = request.sample_id;
    trajectory.attempt = request.attempt;
    trajectory.group = group_of_sample(request.sample_id);
    trajectory.prompt_length = static_cast<int32_t>(request.prompt_tokens.size());
  }
  trajectory.tokens = sequence.tokens;
  trajectory.loss_mask.resize(request.prompt_tokens.size(), 0);
  trajectory.loss_mask.resize(trajectory.tokens.size(), 1);
  trajectory.log_probs.resize(request.prompt_tokens.size(), 0.0f);
  trajectory.log_probs.insert(trajectory.log_probs.end(), sequence.log_probs.begin(), sequence.log_probs.end());
  for (const auto& run : sequence.versions)
    if (trajectory.versions.empty() || trajectory.versions.back().version != run.version)
      trajectory.versions.push_back(run);
  trajectory.finish_reason = FinishReason::kError;
  trajectory.metadata_json = request.metadata_json;
  return trajectory;
}

}  // namespace troupe
