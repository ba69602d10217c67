#include "apps/algorithm_keys.h"

#include <variant>

#include "base/error.h"

namespace troupe::apps {
namespace {

using Field = std::variant<std::string AlgorithmOptions::*, double AlgorithmOptions::*, int64_t AlgorithmOptions::*,
                           bool AlgorithmOptions::*>;

/// One key and the field that it fills.
struct AlgorithmKey {
  const char* name;
  Field field;
  const char* help;
  std::vector<std::string> choices = {};
  double minimum = -1e300, maximum = 1e300;
};

const std::vector<AlgorithmKey>& fields() {
  using O = AlgorithmOptions;
  static const std::vector<AlgorithmKey> list{
      {"name", &O::name, "policy optimisation algorithm; a preset of the keys below, each of which may be set besides",
       known_algorithms()},
      {"advantage",
       &O::advantage,
       "what a sample is compared with: its group's mean, the other samples, a greedy sample, or nothing (reward to "
       "go)",
       {"group_mean", "leave_one_out", "group_reward_to_go", "reward_to_go", "greedy_baseline", "gae"}},
      {"advantage_std",
       &O::advantage_std,
       "group deviation that advantages are divided by",
       {"sample", "population", "none"}},
      {"whiten_advantages", &O::whiten_advantages,
       "advantages of the batch get mean 0 and deviation 1 over its tokens"},
      {"positive_advantage_scale",
       &O::positive_advantage_scale,
       "positive advantages are multiplied by this: below 1, a step learns more from what failed and keeps entropy",
       {},
       0},
      {"policy_loss", &O::policy_loss, "loss of a token", {"clip", "gspo", "cispo", "reinforce"}},
      {"clip_low", &O::clip_low, "the ratio is clipped below 1 minus this", {}, 0, 1},
      {"clip_high", &O::clip_high, "the ratio is clipped above 1 plus this", {}, 0},
      {"dual_clip", &O::dual_clip, "bound on the loss of negative advantages, > 1; 0: off", {}, 0},
      {"ratio_max", &O::ratio_max, "cispo: bound of the ratio that weighs a token", {}, 0},
      {"aggregation",
       &O::aggregation,
       "how token losses become one number",
       {"token-mean", "sequence-mean", "constant"}},
      {"constant_length",
       &O::constant_length,
       "aggregation \"constant\": the length that a sequence counts as; 0: sampling.max_new_tokens",
       {},
       0},
      {"kl_coefficient", &O::kl_coefficient, "weight of the KL to the reference; 0: no reference is loaded", {}, 0},
      {"kl_estimator",
       &O::kl_estimator,
       "estimator of that KL in the loss; in the reward it is k1",
       {"k1", "k2", "k3"}},
      {"kl_in", &O::kl_in, "where the KL enters", {"loss", "reward"}},
      {"kl_target", &O::kl_target, "the coefficient is steered towards this mean KL of a token; 0: it is fixed", {}, 0},
      {"kl_horizon", &O::kl_horizon, "samples over which the steered coefficient follows", {}, 1},
      {"zero_variance",
       &O::zero_variance,
       "groups whose rewards are all equal: left out, kept in the denominator, or replaced by fresh groups",
       {"drop", "keep", "refill"}},
      {"overlong",
       &O::overlong,
       "completions cut at max_new_tokens: trained, left out of the loss, or punished the longer they are",
       {"keep", "mask", "penalty"}},
      {"overlong_max_tokens",
       &O::overlong_max_tokens,
       "\"penalty\": length that is punished in full; 0: sampling.max_new_tokens",
       {},
       0},
      {"overlong_buffer",
       &O::overlong_buffer,
       "\"penalty\": tokens before that length over which it grows; 0: a fifth of it",
       {},
       0},
      {"overlong_penalty_factor",
       &O::overlong_penalty_factor,
       "\"penalty\": what the full punishment takes off the reward",
       {},
       0},
      {"num_epochs", &O::num_epochs, "passes over one batch", {}, 1, 1000},
      {"num_minibatches", &O::num_minibatches, "optimizer steps of one pass", {}, 1, 1000},
      {"old_log_probs",
       &O::old_log_probs,
       "whose log-probs the ratio is anchored at: the sampler's, or the trainer's before its first update",
       {"sampler", "recomputed"}},
      {"correction",
       &O::correction,
       "weights for samples of an older or slightly different policy; needs old_log_probs = \"recomputed\"",
       {"none", "token-truncate", "token-band", "sequence-truncate", "sequence-mask", "geometric-mask"}},
      {"correction_low", &O::correction_low, "bands and masks: smallest weight that counts", {}, 0},
      {"correction_high", &O::correction_high, "bands and masks: largest weight that counts", {}, 0},
      {"correction_cap", &O::correction_cap, "truncation: largest weight", {}, 0},
      {"gamma", &O::gamma, "discount of a token's reward, from trainable token to trainable token", {}, 0, 1},
      {"lambda", &O::lambda, "gae: weight of longer looks ahead", {}, 0, 1},
      {"value_clip", &O::value_clip, "critic: values move at most this far from their old ones; 0: not clipped", {}, 0},
      {"entropy_coefficient", &O::entropy_coefficient, "weight of the entropy bonus", {}, 0},
  };
  return list;
}

std::string full_name(const AlgorithmKey& key) { return concat("algorithm.", key.name); }

KeyType type_of(const Field& field) {
  constexpr KeyType kTypes[] = {KeyType::kString, KeyType::kNumber, KeyType::kInteger, KeyType::kBoolean};
  return kTypes[field.index()];
}

nlohmann::json read(const AlgorithmOptions& options, const Field& field) {
  return std::visit([&](auto member) { return nlohmann::json(options.*member); }, field);
}

}  // namespace

std::vector<KeySpec> algorithm_keys() {
  const AlgorithmOptions defaults;
  std::vector<KeySpec> keys;
  for (const auto& key : fields())
    keys.push_back({full_name(key), type_of(key.field), read(defaults, key.field), key.help, key.choices, key.minimum,
                    key.maximum});
  return keys;
}

void fill_from_preset(Config& config) {
  const auto name = config.string("algorithm.name");
  const auto preset = algorithm_preset(name);
  for (const auto& key : fields()) config.fill(full_name(key), read(preset, key.field), concat("preset ", name));
}

AlgorithmOptions algorithm_options(const Config& config) {
  AlgorithmOptions options;
  for (const auto& key : fields()) {
    const auto& value = config.value(full_name(key)).value;
    std::visit([&](auto member) { value.get_to(options.*member); }, key.field);
  }
  options.temperature = config.number("sampling.temperature");
  complete_algorithm(options, config.integer("sampling.max_new_tokens"));
  check_algorithm(options);
  return options;
}

}  // namespace troupe::apps
