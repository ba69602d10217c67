#include "actors/engine_work.h"

#include "base/error.h"
#include "base/log.h"
#include "rollout/generate.h"

namespace troupe {
namespace {

class EngineWork : public RolloutWork {
 public:
  EngineWork(std::shared_ptr<const ModelSource> model, EngineOptions options, SamplingOptions sampling,
             int64_t baseline_index, const TurnSetup& turns)
      : model_(std::move(model)),
        sampling_(std::move(sampling)),
        greedy_(sampling_),
        baseline_index_(baseline_index),
        engine_(model_->config(), options, model_->tokenizer(), turns) {
    at::set_num_threads(options.num_threads);
    greedy_.temperature = 0;
  }
  void set_weights(WeightBoard::Pointer weights) override { engine_.set_weights(std::move(weights)); }
  int64_t version() const override { return engine_.version(); }
  void add(const WorkOrder& order, size_t index) override {
    const auto id = order.sample_ids[index];
    const bool is_baseline = static_cast<int64_t>(id % kSamplesPerGroupLimit) == baseline_index_;
    GenerationRequest request{id, order.attempts[index], order.prompt_tokens, is_baseline ? greedy_ : sampling_,
                              order.metadata_json};
    if (index < order.so_far.size() && !order.so_far[index].empty())
      request.so_far = unpack_trajectory(std::as_bytes(std::span(order.so_far[index])));
    engine_.add(std::move(request));
  }
  std::vector<Trajectory> step() override {
    const c10::InferenceMode inference;
    return engine_.step();
  }
  bool idle() const override { return engine_.idle(); }
  EngineMetrics metrics() const override { return engine_.metrics(); }
  std::vector<Trajectory> unfinished() const override { return engine_.unfinished(); }

 private:
  std::shared_ptr<const ModelSource> model_;
  SamplingOptions sampling_, greedy_;
  int64_t baseline_index_;
  TurnEngine engine_;
};

}  // namespace

std::unique_ptr<RolloutWork> make_engine_work(std::shared_ptr<const ModelSource> model, EngineOptions options,
                                              SamplingOptions sampling, int64_t baseline_index, TurnSetup turns) {
  return std::make_unique<EngineWork>(std::move(model), std::move(options), std::move(sampling), baseline_index, turns);
}

TurnSetup turn_setup(const ModelSource& model, const EnvironmentOptions& environment) {
  if (environment.kind.empty()) return {};
  return {environment, model.chat_template_source(), model.tokenizer_config()};
}

std::string sample_metadata(const Prompt& prompt) {
  auto metadata = nlohmann::json::parse(prompt.metadata_json, nullptr, false);
  if (!metadata.is_object()) return prompt.metadata_json;
  auto messages = nlohmann::json::array();
  for (const auto& [role, content] : prompt.messages) messages.push_back({{"role", role}, {"content", content}});
  metadata.emplace("messages", std::move(messages));
  return metadata.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json evaluate_weights(const ModelSource& model, WeightBoard& board, const EvaluationOptions& evaluation,
                                EngineOptions engine_options, SamplingOptions sampling, const TurnSetup& turns,
                                const std::vector<RewardOptions>& rewards, double timeout_s,
                                const std::function<bool()>& stop_requested) {
  const auto begin = std::chrono::steady_clock::now();
  const c10::InferenceMode inference;
  at::set_num_threads(engine_options.num_threads);
  const auto prompts = make_prompt_source(evaluation.data);
  const auto num_prompts = std::min<int64_t>(evaluation.num_prompts, static_cast<int64_t>(prompts->size()));
  const auto k = std::max<int64_t>(evaluation.num_samples, 1);
  if (k == 1) sampling.temperature = 0;
  std::vector<GenerationRequest> requests;
  std::string last_failure;
  for (int64_t p = 0; p < num_prompts; ++p) {
    const auto prompt = prompts->at(static_cast<uint64_t>(p));
    std::vector<int32_t> tokens;
    try {  // one that cannot be served costs its own score, as in training
      tokens = model.encode(prompt);
      require(static_cast<int64_t>(tokens.size()) < engine_options.max_context_length, "a prompt of ", tokens.size(),
              " tokens leaves no room in training.max_context_length = ", engine_options.max_context_length);
    } catch (const std::exception& error) {
      last_failure = error.what();
      log::warning("evaluation: held-out prompt ", p, " is left out: ", last_failure);
      continue;
    }
    for (int64_t s = 0; s < k; ++s)
      requests.push_back({make_sample_id(static_cast<uint64_t>(p), static_cast<uint32_t>(s)), 0, tokens, sampling,
                          sample_metadata(prompt)});
  }
  engine_options.seed ^= 0x6576616c;  // "eval": not the numbers of training
  TurnEngine engine(model.config(), engine_options, model.tokenizer(), turns);
  const auto weights = board.latest();
  engine.set_weights(weights);
  GenerateLimits limits;
  limits.timeout_s = timeout_s;
  limits.stop_requested = stop_requested;
  auto answers = generate_all(engine, std::move(requests), limits);
  require(!stop_requested || !stop_requested(), "evaluation: stopped");
  score_all(rewards, answers);
  double sum = 0, num_tokens = 0, num_turns = 0;
  int64_t num_answered = 0, num_lost = 0, num_scored = 0, num_truncated = 0;
  std::map<uint64_t, double> best;
  std::map<std::string, std::pair<double, int64_t>> by_reward;  // sum, count
  for (auto& answer : answers) {
    num_lost += answer.finish_reason == FinishReason::kError;
    num_turns += answer.num_turns;
    num_answered += answer.num_turns > 1;
    num_truncated += answer.finish_reason == FinishReason::kLength;
    num_tokens += static_cast<double>(answer.num_sampled_tokens());
    for (const auto& reward : answer.rewards) {
      if (!reward.value) continue;
      by_reward[reward.name].first += *reward.value;
      ++by_reward[reward.name].second;
    }
    if (!answer.total_reward || answer.finish_reason == FinishReason::kError) continue;
    sum += *answer.total_reward;
    ++num_scored;
    const auto at = best.try_emplace(answer.group, *answer.total_reward).first;
    at->second = std::max(at->second, *answer.total_reward);
  }
  require(num_scored > 0, "evaluation: no sample of ", num_prompts * k, " got a score",
          last_failure.empty() ? "" : "; the last prompt that was left out: " + last_failure);
  const auto solved = std::count_if(best.begin(), best.end(), [](const auto& entry) { return entry.second >= 1; });
  nlohmann::json metrics{
      {"evaluation/score", sum / static_cast<double>(num_scored)},
      {"evaluation/num_prompts", num_prompts},
      {"evaluation/num_failures", num_prompts * k - num_scored},
      {"evaluation/truncation_rate", static_cast<double>(num_truncated) / static_cast<double>(answers.size())},
      {"evaluation/response_length", num_tokens / static_cast<double>(answers.size())},
      {"evaluation/version", weights->version()}};
  for (const auto& [name, one] : by_reward)
    if (rewards.size() > 1) metrics["evaluation/reward/" + name] = one.first / static_cast<double>(one.second);
  if (!turns.environment.kind.empty()) {
    metrics["evaluation/num_turns"] = num_turns / static_cast<double>(answers.size());
    metrics["evaluation/answered_frac"] = static_cast<double>(num_answered) / static_cast<double>(answers.size());
    metrics["evaluation/num_environment_failures"] = num_lost;
  }
  if (k > 1) {
    metrics[concat("evaluation/avg@", k)] = metrics["evaluation/score"];
    metrics[concat("evaluation/pass@", k)] = static_cast<double>(solved) / static_cast<double>(num_prompts);
  }
  metrics["evaluation/time(s)"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return metrics;
}

}  // namespace troupe
