// Replays every case of $TROUPE_FIXTURES/algorithms/*.json (float64) against advantages, policy losses, KL, value loss
// and preference losses, and prints one line a case. What the fixtures mean: tests/fixtures/README.md.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "training/advantages.h"
#include "training/aggregation.h"
#include "training/kl.h"
#include "training/policy_loss.h"
#include "training/preference_loss.h"
#include "training/value_loss.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

using nlohmann::json;
constexpr double kTolerance = 1e-9;

Tensor to_tensor(const json& rows) {
  std::vector<double> flat;
  std::vector<int64_t> shape;
  const json* level = &rows;
  while (level->is_array()) {
    shape.push_back(static_cast<int64_t>(level->size()));
    level = &level->front();
  }
  const auto walk = [&](const auto& self, const json& node) -> void {
    if (!node.is_array()) return flat.push_back(node.get<double>());
    for (const auto& child : node) self(self, child);
  };
  walk(walk, rows);
  return at::tensor(flat, at::kDouble).view(shape);
}

double max_difference(const Tensor& left, const json& right) {
  return (left - to_tensor(right)).abs().max().item<double>();
}

/// The inputs of one case file, with the trainable tokens gathered into flat tensors as the learner does.
struct Case {
  explicit Case(const json& inputs) : mask_SL(to_tensor(inputs.at("mask")).to(at::kBool)), values(inputs) {
    for (const auto& row : inputs.at("mask")) {
      auto& mask = masks.emplace_back();
      for (const auto& entry : row) mask.push_back(entry.get<double>() != 0);
    }
    for (const auto& reward : inputs.at("reward")) rewards.emplace_back(reward.get<double>());
    groups = inputs.at("group").get<std::vector<uint64_t>>();
    const auto samples = mask_SL.size(0);
    sequences_N = at::arange(samples).unsqueeze(1).expand_as(mask_SL).masked_select(mask_SL);
    for (const auto& mask : masks) {
      const auto length = std::count(mask.begin(), mask.end(), 1);
      lengths.push_back(length);
      counts.num_tokens += length;
      counts.num_sequences += length > 0;
      counts.num_sequences_in_batch += 1;
    }
  }
  Tensor gather(const char* name) const { return to_tensor(values.at(name)).masked_select(mask_SL); }
  Tensor scatter(const Tensor& x_N) const {
    return at::zeros(mask_SL.sizes(), at::kDouble).masked_scatter(mask_SL, x_N);
  }
  Tensor spread(const std::vector<double>& per_sample) const {
    return at::tensor(per_sample, at::kDouble).index_select(0, sequences_N);
  }
  Tensor weights(Aggregation mode, double constant) const {
    std::vector<double> per_sample;
    for (const auto length : lengths) per_sample.push_back(token_weight(mode, counts, length, constant));
    return spread(per_sample);
  }
  std::vector<double> row(const char* name, size_t sample) const {
    return values.at(name).at(sample).get<std::vector<double>>();
  }

  Tensor mask_SL, sequences_N;
  json values;
  std::vector<std::vector<uint8_t>> masks;
  std::vector<std::optional<double>> rewards;
  std::vector<uint64_t> groups;
  std::vector<int64_t> lengths;
  LossCounts counts;
};

std::optional<GroupAdvantages> named_group_advantages(const std::string& name,
                                                      const std::vector<std::optional<double>>& rewards,
                                                      const std::vector<uint64_t>& groups) {
  using enum GroupBaseline;
  if (name == "group_mean") return group_advantages(rewards, groups, kGroupMean, AdvantageStd::kNone);
  if (name == "group_mean_sample_std") return group_advantages(rewards, groups, kGroupMean, AdvantageStd::kSample);
  if (name == "group_mean_population_std")
    return group_advantages(rewards, groups, kGroupMean, AdvantageStd::kPopulation);
  if (name == "leave_one_out") return group_advantages(rewards, groups, kLeaveOneOut, AdvantageStd::kNone);
  return std::nullopt;
}

std::vector<double> sample_token_rewards(const Case& c, size_t sample, double kl_coefficient) {
  const auto old_log_probs = c.row("logp_old", sample), reference = c.row("logp_ref", sample);
  std::vector<double> kl(old_log_probs.size());
  for (size_t t = 0; t < kl.size(); ++t) kl[t] = old_log_probs[t] - reference[t];
  return token_rewards(c.masks[sample], *c.rewards[sample], kl, kl_coefficient);
}

Tensor stack(const std::vector<std::vector<double>>& rows) {
  std::vector<Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(at::tensor(row, at::kDouble));
  return at::stack(tensors);
}

void whiten_all(const Case& c, std::vector<std::vector<double>>& rows) {
  Moments moments;
  for (size_t s = 0; s < rows.size(); ++s) moments.merge(masked_moments(c.masks[s], rows[s]));
  for (size_t s = 0; s < rows.size(); ++s) whiten(c.masks[s], rows[s], moments);
}

double setting(const std::string& name, const std::string& key) {
  return std::stod(name.substr(name.find(key + "=") + key.size() + 1));
}

/// Returns of `gae gamma=... lambda=...`, the values' target.
struct GaeRows {
  std::vector<std::vector<double>> token_reward, advantage, returns;
};
GaeRows gae_rows(const Case& c, double gamma, double lambda, double kl_coefficient) {
  GaeRows rows;
  for (size_t s = 0; s < c.masks.size(); ++s) {
    rows.token_reward.push_back(sample_token_rewards(c, s, kl_coefficient));
    const auto gae = generalized_advantages(c.masks[s], rows.token_reward[s], c.row("value", s), gamma, lambda);
    rows.advantage.push_back(gae.advantage);
    rows.returns.push_back(gae.returns);
  }
  return rows;
}

std::optional<double> advantage_case(const Case& c, const std::string& name, const json& expected) {
  if (const auto group = named_group_advantages(name, c.rewards, c.groups))
    return max_difference(at::tensor(group->advantage, at::kDouble), expected);
  if (name.rfind("gae ", 0) == 0) {
    auto rows = gae_rows(c, setting(name, "gamma"), setting(name, "lambda"), setting(name, "kl_in_reward"));
    double worst = max_difference(stack(rows.token_reward), expected.at("token_reward"));
    worst = std::max(worst, max_difference(stack(rows.advantage), expected.at("advantage")));
    worst = std::max(worst, max_difference(stack(rows.returns), expected.at("return")));
    whiten_all(c, rows.advantage);
    return std::max(worst, max_difference(stack(rows.advantage), expected.at("whitened")));
  }
  if (name.rfind("reinforce_plus_plus ", 0) == 0) {
    std::vector<std::vector<double>> rows;
    for (size_t s = 0; s < c.masks.size(); ++s)
      rows.push_back(discounted_returns(c.masks[s], sample_token_rewards(c, s, setting(name, "kl_in_reward")),
                                        setting(name, "gamma")));
    whiten_all(c, rows);
    return max_difference(stack(rows), expected);
  }
  return std::nullopt;
}

double policy_case(const Case& c, const json& expected) {
  auto name = expected.at("name").get<std::string>();
  PolicyLossOptions options;
  const bool is_decoupled = name == "decoupled-clip";
  options.kind = parse_policy_loss(is_decoupled ? "clip" : name);
  options.clip_low = expected.value("clip_low", 0.2);
  options.clip_high = expected.value("clip_high", 0.2);
  options.dual_clip = expected.value("dual_clip", 0.0);
  options.ratio_max = expected.value("ratio_max", 0.0);
  options.correction = parse_correction(expected.value("correction", "none"));
  options.correction_low = expected.value("low", 0.0);
  options.correction_high = expected.value("high", 0.0);
  options.correction_cap = expected.value("cap", 0.0);

  const auto group = group_advantages(c.rewards, c.groups, GroupBaseline::kGroupMean, AdvantageStd::kNone);
  PolicyLossInput input;
  input.log_probs_N = c.gather("logp_new").requires_grad_();
  input.anchor_log_probs_N = c.gather(is_decoupled ? "logp_prox" : "logp_old");
  input.behavior_log_probs_N = c.gather("logp_old");
  input.advantages_N = c.spread(group.advantage);
  input.sequences_N = c.sequences_N;
  input.num_sequences = static_cast<int64_t>(c.masks.size());
  const auto result = policy_loss(input, options);
  const auto weights = c.weights(parse_aggregation(expected.at("aggregation")), expected.value("constant", 0.0));
  const auto loss = (result.token_loss_N * weights).sum();
  loss.backward();
  double worst = std::abs(loss.item<double>() - expected.at("loss").get<double>());
  worst = std::max(worst, max_difference(c.scatter(input.log_probs_N.grad()), expected.at("grad_logp_new")));
  if (expected.contains("clip_fraction")) {
    const double fraction = result.clipped_N.to(at::kDouble).mean().item<double>();
    worst = std::max(worst, std::abs(fraction - expected.at("clip_fraction").get<double>()));
  }
  return worst;
}

double kl_case(const Case& c, const std::string& name, const json& expected) {
  const auto log_probs = c.gather("logp_new").requires_grad_();
  const auto estimate = kl_estimate(parse_kl_estimator(name), log_probs, c.gather("logp_ref"));
  const auto loss = (estimate * c.weights(Aggregation::kTokenMean, 0)).sum();
  loss.backward();
  return std::max(std::abs(loss.item<double>() - expected.at("token_mean").get<double>()),
                  max_difference(c.scatter(log_probs.grad()), expected.at("grad_logp_new")));
}

double value_case(const Case& c, const json& expected) {
  const auto rows = gae_rows(c, expected.at("gamma"), expected.at("lambda"), 0.05);
  const auto values = c.gather("value").requires_grad_();
  std::optional<double> clip;
  if (!expected.at("clip").is_null()) clip = expected.at("clip").get<double>();
  const auto token_loss = value_loss(values, c.gather("value_old"), stack(rows.returns).masked_select(c.mask_SL), clip);
  const auto loss = (token_loss * c.weights(Aggregation::kTokenMean, 0)).sum();
  loss.backward();
  return std::max(std::abs(loss.item<double>() - expected.at("loss").get<double>()),
                  max_difference(c.scatter(values.grad()), expected.at("grad_value")));
}

std::optional<double> preference_case(const json& expected) {
  const auto name = expected.at("name").get<std::string>();
  if (name == "bradley-terry") {
    const auto score_P2 = to_tensor(expected.at("score")).requires_grad_();
    const auto margin = at::full({score_P2.size(0)}, expected.at("margin").get<double>(), at::kDouble);
    const auto loss =
        bradley_terry_loss(score_P2.select(1, 0), score_P2.select(1, 1), margin, expected.at("center")).mean();
    loss.backward();
    return std::max(std::abs(loss.item<double>() - expected.at("loss").get<double>()),
                    max_difference(score_P2.grad(), expected.at("grad_score")));
  }
  if (name != "dpo" && name != "ipo") return std::nullopt;
  PreferenceLogProbs p{to_tensor(expected.at("chosen")).requires_grad_(),
                       to_tensor(expected.at("rejected")).requires_grad_(), to_tensor(expected.at("ref_chosen")),
                       to_tensor(expected.at("ref_rejected"))};
  const double beta = expected.at("beta");
  const auto loss =
      (name == "dpo" ? dpo_loss(p, beta, expected.value("label_smoothing", 0.0)) : ipo_loss(p, beta)).mean();
  loss.backward();
  double worst = std::abs(loss.item<double>() - expected.at("loss").get<double>());
  worst = std::max(worst, max_difference(p.chosen_P.grad(), expected.at("grad_chosen")));
  return std::max(worst, max_difference(p.rejected_P.grad(), expected.at("grad_rejected")));
}

/// Rewards with holes, and which samples take part.
std::optional<double> edge_case(const json& entry) {
  std::vector<std::optional<double>> rewards;
  for (const auto& reward : entry.at("reward"))
    rewards.push_back(reward.is_null() ? std::nullopt : std::optional<double>(reward.get<double>()));
  const auto groups = entry.at("group").get<std::vector<uint64_t>>();
  double worst = 0;
  for (const auto& [name, expected] : entry.at("advantage").items()) {
    const auto result = named_group_advantages(name, rewards, groups);
    if (!result) return std::nullopt;
    worst = std::max(worst, max_difference(at::tensor(result->advantage, at::kDouble), expected));
    for (size_t i = 0; i < rewards.size(); ++i)
      worst = std::max(worst, std::abs(double(result->live[i]) - entry.at("live").at(i).get<double>()));
    worst = std::max(
        worst, std::abs(double(result->num_zero_variance_groups) - entry.at("zero_variance_groups").get<double>()));
  }
  return worst;
}

/// Prints the line of each case and counts.
class Replay {
 public:
  explicit Replay(std::string file) : file_(std::move(file)) {}
  void report(const std::string& name, std::optional<double> worst) {
    const bool is_right = worst && *worst <= kTolerance;  // NaN is wrong
    std::cout << file_ << '#' << index_++ << ' ' << name << ' ' << (!worst ? "unsupported" : is_right ? "ok" : "FAIL");
    if (worst) std::cout << " max=" << *worst;
    std::cout << '\n';
    CHECK_MESSAGE(is_right, file_, " ", name);
  }

 private:
  std::string file_;
  int index_ = 0;
};

void replay_file(const std::filesystem::path& path) {
  Replay replay(path.filename().string());
  const auto content = json::parse(std::ifstream(path));
  if (content.is_array()) {
    for (const auto& entry : content) replay.report("edge: " + entry.at("name").get<std::string>(), edge_case(entry));
    return;
  }
  const Case c(content.at("inputs"));
  for (const auto& [name, expected] : content.at("advantage").items())
    replay.report("advantage " + name, advantage_case(c, name, expected));
  for (const auto& expected : content.at("policy_loss")) {
    auto name = expected.at("name").get<std::string>() + " " + expected.at("aggregation").get<std::string>();
    if (expected.contains("correction")) name += " " + expected.at("correction").get<std::string>();
    replay.report("policy_loss " + name, policy_case(c, expected));
  }
  for (const auto& [name, expected] : content.at("kl").items()) replay.report("kl " + name, kl_case(c, name, expected));
  for (const auto& expected : content.at("value_loss"))
    replay.report(expected.at("clip").is_null() ? "value_loss unclipped" : "value_loss clip", value_case(c, expected));
  for (const auto& expected : content.at("preference"))
    replay.report("preference " + expected.at("name").get<std::string>(), preference_case(expected));
}

}  // namespace

TEST_SUITE("fixtures") {
  TEST_CASE("fixture algorithms") {
    const char* folder = std::getenv("TROUPE_FIXTURES");
    const auto root = std::filesystem::path(folder != nullptr ? folder : TROUPE_SOURCE_DIR "/tests/fixtures");
    std::vector<std::filesystem::path> files;
    if (std::filesystem::exists(root / "algorithms"))
      for (const auto& entry : std::filesystem::directory_iterator(root / "algorithms"))
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    REQUIRE_MESSAGE(!files.empty(), "no cases under ", (root / "algorithms").string());
    for (const auto& file : files) replay_file(file);
  }
}

}  // namespace troupe
