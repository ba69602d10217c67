#include "actors/batch_summary.h"

#include <algorithm>

namespace troupe {
namespace {

struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  void write(nlohmann::json& metrics, const std::string& name) const {
    if (count > 0) metrics[name] = sum / static_cast<double>(count);
  }
};

/// Sampled tokens of each version run: (version, count).
std::vector<std::pair<int64_t, int64_t>> tokens_by_run(const Trajectory& t) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (size_t i = 0; i < t.versions.size(); ++i) {
    const auto begin = t.loss_mask.begin() + t.versions[i].first_index;
    const auto end =
        i + 1 < t.versions.size() ? t.loss_mask.begin() + t.versions[i + 1].first_index : t.loss_mask.end();
    runs.emplace_back(t.versions[i].version, std::count(begin, end, uint8_t{1}));
  }
  return runs;
}

nlohmann::json journal_entry(const Trajectory& t) {
  auto runs = nlohmann::json::array();
  for (const auto& run : t.versions) runs.push_back({run.first_index, run.version});
  return {{"id", t.sample_id}, {"attempt", t.attempt}, {"versions", std::move(runs)}};
}

nlohmann::json show(const Trajectory& t, int64_t step, const char* kind, const TokenText& text) {
  nlohmann::json rewards = nlohmann::json::object();
  for (const auto& reward : t.rewards)
    rewards[reward.name] = reward.value ? nlohmann::json(*reward.value) : nlohmann::json(reward.failure);
  const std::vector<int32_t> prompt(t.tokens.begin(), t.tokens.begin() + t.prompt_length);
  return {{"step", step},
          {"kind", kind},
          {"sample_id", t.sample_id},
          {"group", t.group},
          {"prompt", text ? text(prompt) : std::string()},
          {"completion",
           t.num_turns > 1 && text ? text({t.tokens.begin() + t.prompt_length, t.tokens.end()}) : t.completion_text},
          {"reward", t.total_reward ? nlohmann::json(*t.total_reward) : nlohmann::json()},
          {"rewards", rewards},
          {"finish_reason", to_string(t.finish_reason)},
          {"num_tokens", t.num_sampled_tokens()},
          {"metadata", t.metadata_json}};
}

}  // namespace

nlohmann::json summarize_batch(const GroupBatch& batch, int64_t step, const TokenText& text) {
  Mean reward, baseline, length, truncated, age, turns, answered, environment, constant;
  std::map<std::string, Mean> by_name;
  std::map<std::string, int64_t> failures_by_name;
  int64_t age_max = 0, failures = 0, num_tokens = 0, given_up = 0;
  const Trajectory *best = nullptr, *worst = nullptr, *any = nullptr;
  auto samples = nlohmann::json::array(), groups = nlohmann::json::array(), missing = nlohmann::json::array();
  const auto chosen = batch.num_samples() > 0 ? (step * 2654435761) % batch.num_samples() : 0;
  int64_t index = 0;
  for (const auto& group : batch.groups) {
    groups.push_back(group.group);
    constant.add(has_zero_variance(group));
    given_up += static_cast<int64_t>(group.given_up.size());
    for (const auto& [id, reason] : group.given_up) missing.push_back({{"id", id}, {"reason", reason}});
    if (group.baseline) {
      baseline.add(*group.baseline->total_reward);
      samples.push_back(journal_entry(*group.baseline));
      samples.back()["baseline"] = true;
    }
    for (const auto& [id, t] : group.samples) {
      if (t.total_reward) {
        reward.add(*t.total_reward);
        if (best == nullptr || *t.total_reward > *best->total_reward) best = &t;
        if (worst == nullptr || *t.total_reward < *worst->total_reward) worst = &t;
      }
      if (index++ == chosen) any = &t;
      for (const auto& one : t.rewards) {
        if (one.value) {
          by_name[one.name].add(*one.value);
        } else {
          ++failures;
          ++failures_by_name[one.name];
        }
      }
      length.add(static_cast<double>(t.num_sampled_tokens()));
      truncated.add(t.finish_reason == FinishReason::kLength);
      turns.add(t.num_turns);
      if (t.environment_reward) {
        environment.add(*t.environment_reward);
        answered.add(t.num_turns > 1);
      }
      num_tokens += static_cast<int64_t>(t.tokens.size());
      for (const auto& [version, count] : tokens_by_run(t)) {
        const auto behind = step - 1 - version;
        age.sum += static_cast<double>(behind * count);
        age.count += count;
        if (count > 0) age_max = std::max(age_max, behind);
      }
      samples.push_back(journal_entry(t));
    }
  }
  nlohmann::json metrics = nlohmann::json::object();
  reward.write(metrics, "train_batch/reward/mean");
  reward.sum += batch.filtered_reward_sum;
  reward.count += batch.num_filtered_rewards;
  reward.write(metrics, "reward/mean");
  baseline.write(metrics, "reward/baseline_mean");
  for (const auto& [name, mean] : by_name) mean.write(metrics, "reward/" + name + "/mean");
  if (best != nullptr) {
    metrics["reward/max"] = *best->total_reward;
    metrics["reward/min"] = *worst->total_reward;
  }
  metrics["reward/num_failures"] = failures;
  for (const auto& [name, count] : failures_by_name) metrics["reward/" + name + "/num_failures"] = count;
  length.write(metrics, "rollout/response_length");
  truncated.write(metrics, "rollout/truncation_rate");
  turns.write(metrics, "rollout/num_turns");
  answered.write(metrics, "rollout/answered_frac");
  environment.write(metrics, "rollout/environment_reward");
  age.write(metrics, "train_batch/policy_age");
  metrics["train_batch/policy_age_max"] = age_max;
  metrics["train_batch/num_samples"] = batch.num_samples();
  metrics["train_batch/num_groups"] = batch.groups.size();
  metrics["train_batch/num_tokens"] = num_tokens;
  metrics["train_batch/num_samples_given_up"] = given_up;
  auto filtered = batch.dropped;
  filtered["zero_variance"] += static_cast<int64_t>(batch.left_out.size());
  for (const auto& [reason, count] : filtered) metrics["rollout_buffer/num_dropped/" + reason] = count;
  constant.sum += static_cast<double>(filtered["zero_variance"]);
  constant.count += filtered["zero_variance"];
  constant.write(metrics, "rollout_reward/group_zero_std_frac");
  auto shown = nlohmann::json::array();
  if (best != nullptr) {
    shown.push_back(show(*best, step, "best", text));
    if (worst != best) shown.push_back(show(*worst, step, "worst", text));
  }
  if (any != nullptr && any != best && any != worst) shown.push_back(show(*any, step, "random", text));
  auto dropped = nlohmann::json::array();
  for (const auto& group : batch.left_out) {
    auto ids = nlohmann::json::array();
    for (const auto& [id, attempt] : group.samples) ids.push_back({{"id", id}, {"attempt", attempt}});
    auto lost = nlohmann::json::array();
    for (const auto& [id, reason] : group.given_up) lost.push_back({{"id", id}, {"reason", reason}});
    dropped.push_back(
        {{"group", group.group}, {"reason", group.reason}, {"samples", std::move(ids)}, {"given_up", std::move(lost)}});
  }
  return {{"metrics", std::move(metrics)},
          {"journal",
           {{"step", step},
            {"version", step},
            {"groups", std::move(groups)},
            {"samples", std::move(samples)},
            {"given_up", std::move(missing)},
            {"dropped", std::move(dropped)}}},
          {"samples", std::move(shown)}};
}

}  // namespace troupe
