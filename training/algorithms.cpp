#include "training/algorithms.h"

#include "training/advantages.h"
#include "training/aggregation.h"
#include "training/choices.h"
#include "training/loss_names.h"

namespace troupe {
namespace {

struct Preset {
  const char* name;
  void (*apply)(AlgorithmOptions& options);
};

/// The list: a new algorithm is one entry here and one section in docs/algorithms.md.
constexpr Preset kPresets[] = {
    {"grpo", [](AlgorithmOptions&) {}},
    {"dr_grpo",
     [](AlgorithmOptions& o) {
       o.advantage_std = "none";
       o.aggregation = "constant";
       o.zero_variance = "keep";
     }},
    {"dapo",
     [](AlgorithmOptions& o) {
       o.clip_high = 0.28;
       o.zero_variance = "refill";
       o.overlong = "penalty";
     }},
    {"gspo",
     [](AlgorithmOptions& o) {
       o.policy_loss = "gspo";
       o.clip_low = 3e-4;
       o.clip_high = 4e-4;
       o.aggregation = "sequence-mean";
     }},
    {"cispo",
     [](AlgorithmOptions& o) {
       o.policy_loss = "cispo";
       o.ratio_max = 5;
     }},
    {"rloo",
     [](AlgorithmOptions& o) {
       o.advantage = "leave_one_out";
       o.advantage_std = "none";
       o.policy_loss = "reinforce";
       o.kl_in = "reward";
     }},
    {"reinforce_plus_plus",
     [](AlgorithmOptions& o) {
       o.advantage = "reward_to_go";
       o.whiten_advantages = true;
       o.kl_in = "reward";
       o.zero_variance = "keep";
     }},
    {"reinforce_plus_plus_baseline",
     [](AlgorithmOptions& o) {
       o.advantage = "group_reward_to_go";
       o.whiten_advantages = true;
       o.kl_estimator = "k2";
     }},
    {"remax",
     [](AlgorithmOptions& o) {
       o.advantage = "greedy_baseline";
       o.policy_loss = "reinforce";
       o.kl_in = "reward";
       o.zero_variance = "keep";
     }},
    {"ppo",
     [](AlgorithmOptions& o) {
       o.advantage = "gae";
       o.whiten_advantages = true;
       o.kl_in = "reward";
       o.zero_variance = "keep";
       o.num_minibatches = 4;
     }},
};

void check_choice(const char* key, const std::string& value, std::initializer_list<const char*> known) {
  std::string list;
  for (const char* text : known) {
    if (value == text) return;
    list += concat(list.empty() ? "" : ", ", '"', text, '"');
  }
  throw UsageError(concat("algorithm.", key, " = \"", value, "\" is unknown; known: ", list));
}

void check_that(bool condition, const char* key, auto value, const char* wanted) {
  if (!condition) throw UsageError(concat("algorithm.", key, " = ", value, " ", wanted));
}

/// Values that are fine alone and say nothing, or nothing true, beside another one.
void check_combinations(const AlgorithmOptions& o) {
  const AlgorithmOptions neutral;
  check_that(o.kl_target == 0 || o.kl_coefficient > 0, "kl_target", o.kl_target,
             "needs algorithm.kl_coefficient above 0: the adaptive coefficient is multiplied, and 0 stays 0");
  check_that(o.dual_clip == 0 || o.policy_loss == "clip" || o.policy_loss == "gspo", "dual_clip", o.dual_clip,
             concat("bounds a clipped ratio: algorithm.policy_loss = \"", o.policy_loss, "\" has none").c_str());
  const bool discounts = needs_critic(o) || o.advantage == "reward_to_go" || o.advantage == "group_reward_to_go";
  const auto whole_sample = concat("discounts token by token: algorithm.advantage = \"", o.advantage,
                                   "\" gives every token of a sample the same");
  check_that(o.gamma == neutral.gamma || discounts, "gamma", o.gamma, whole_sample.c_str());
  const auto no_values = concat("needs a critic's values: algorithm.advantage = \"", o.advantage, "\" has none");
  check_that(o.lambda == neutral.lambda || needs_critic(o), "lambda", o.lambda, no_values.c_str());
  check_that(o.value_clip == neutral.value_clip || needs_critic(o), "value_clip", o.value_clip, no_values.c_str());
  check_that(o.zero_variance == "keep" || !needs_baseline_sample(o), "zero_variance", o.zero_variance,
             "does not go with algorithm.advantage = \"greedy_baseline\": samples with one reward still differ from "
             "the greedy one");
}

}  // namespace

std::vector<std::string> known_algorithms() {
  std::vector<std::string> names;
  for (const auto& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

AlgorithmOptions algorithm_preset(const std::string& name) {
  std::string list;
  for (const auto& preset : kPresets) {
    list += concat(list.empty() ? "" : ", ", '"', preset.name, '"');
    if (name != preset.name) continue;
    AlgorithmOptions options;
    options.name = name;
    preset.apply(options);
    return options;
  }
  throw UsageError(concat("algorithm.name = \"", name, "\" is unknown; known: ", list));
}

void complete_algorithm(AlgorithmOptions& o, int64_t max_new_tokens) {
  if (o.constant_length == 0) o.constant_length = static_cast<double>(max_new_tokens);
  if (o.overlong_max_tokens == 0) o.overlong_max_tokens = max_new_tokens;
  if (o.overlong_buffer == 0) o.overlong_buffer = o.overlong_max_tokens / 5;
}

void check_algorithm(const AlgorithmOptions& o) {
  algorithm_preset(o.name);
  check_choice("advantage", o.advantage,
               {"group_mean", "leave_one_out", "gae", "reward_to_go", "group_reward_to_go", "greedy_baseline"});
  check_choice("kl_in", o.kl_in, {"loss", "reward"});
  check_choice("zero_variance", o.zero_variance, {"drop", "keep", "refill"});
  check_choice("overlong", o.overlong, {"keep", "mask", "penalty"});
  check_choice("old_log_probs", o.old_log_probs, {"sampler", "recomputed"});
  parse_advantage_std(o.advantage_std);
  parse_aggregation(o.aggregation);
  parse_kl_estimator(o.kl_estimator);
  parse_policy_loss(o.policy_loss);
  const auto correction = parse_correction(o.correction);
  check_that(o.temperature > 0, "temperature", o.temperature, "cannot be trained on: log-probs need one above 0");
  check_that(o.clip_low >= 0 && o.clip_low < 1, "clip_low", o.clip_low, "must lie in [0, 1)");
  check_that(o.clip_high >= 0, "clip_high", o.clip_high, "must not be negative");
  check_that(o.dual_clip == 0 || o.dual_clip > 1, "dual_clip", o.dual_clip, "must be 0 (off) or above 1");
  check_that(o.ratio_max > 0, "ratio_max", o.ratio_max, "must be above 0");
  check_that(o.aggregation != "constant" || o.constant_length > 0, "constant_length", o.constant_length,
             "must be above 0 with aggregation = \"constant\"");
  check_that(o.positive_advantage_scale >= 0, "positive_advantage_scale", o.positive_advantage_scale,
             "must not be negative");
  check_that(o.kl_coefficient >= 0, "kl_coefficient", o.kl_coefficient, "must not be negative");
  check_that(o.kl_target >= 0, "kl_target", o.kl_target, "must not be negative");
  check_that(o.kl_target == 0 || o.kl_horizon > 0, "kl_horizon", o.kl_horizon, "must be above 0");
  check_that(o.num_epochs >= 1, "num_epochs", o.num_epochs, "must be at least 1");
  check_that(o.num_minibatches >= 1, "num_minibatches", o.num_minibatches, "must be at least 1");
  check_that(o.gamma >= 0 && o.gamma <= 1, "gamma", o.gamma, "must lie in [0, 1]");
  check_that(o.lambda >= 0 && o.lambda <= 1, "lambda", o.lambda, "must lie in [0, 1]");
  check_that(o.overlong != "penalty" || o.overlong_max_tokens > 0, "overlong_max_tokens", o.overlong_max_tokens,
             "must be above 0 with overlong = \"penalty\"");
  check_that(o.overlong_buffer >= 0 && o.overlong_buffer <= o.overlong_max_tokens, "overlong_buffer", o.overlong_buffer,
             "must lie in [0, overlong_max_tokens]");
  check_that(correction == Correction::kNone || o.old_log_probs == "recomputed", "correction", o.correction,
             "needs old_log_probs = \"recomputed\": without proximal log-probs there is nothing to correct around");
  check_that(o.correction_low >= 0 && o.correction_low < o.correction_high, "correction_low", o.correction_low,
             "must lie in [0, correction_high)");
  check_that(o.correction_cap > 0, "correction_cap", o.correction_cap, "must be above 0");
  check_combinations(o);
}

bool needs_reference(const AlgorithmOptions& options) { return options.kl_coefficient > 0; }
bool needs_groups(const AlgorithmOptions& options) {
  return options.advantage == "group_mean" || options.advantage == "leave_one_out" ||
         options.advantage == "group_reward_to_go";
}
bool needs_baseline_sample(const AlgorithmOptions& options) { return options.advantage == "greedy_baseline"; }
bool needs_critic(const AlgorithmOptions& options) { return options.advantage == "gae"; }

}  // namespace troupe
