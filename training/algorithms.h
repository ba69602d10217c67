// The policy-gradient algorithms by name. Each is a set of parameters of shared parts (advantage, policy loss,
// aggregation, KL, correction), so a new one is one entry in the list of algorithms.cpp. docs/algorithms.md has
// formulas and papers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// Every knob of a policy step. Names are those of the configuration's [algorithm] section. A run starts from
/// `algorithm_preset(name)`; keys that the user gives replace the preset's.
struct AlgorithmOptions {
  std::string name = "grpo";
  /// "group_mean" "leave_one_out" (over the group's samples), "gae" (needs a critic's values), "reward_to_go"
  /// (discounted token rewards), "group_reward_to_go" (the same after subtracting the group's mean), "greedy_baseline"
  /// (reward minus the greedy completion's: Trajectory::baseline_reward).
  std::string advantage = "group_mean";
  std::string advantage_std = "sample";  // of the group: "sample" "population" "none"
  bool whiten_advantages = false;        // over all trainable tokens of the batch
  /// Positive advantages are multiplied by this, after whitening. Below 1 a step teaches more by what went wrong than
  /// by what went right, which keeps entropy up (Zhu et al. 2025, arXiv 2506.01347: W-REINFORCE, 0.1; 0: negative
  /// only).
  double positive_advantage_scale = 1;
  std::string policy_loss = "clip";  // "clip" "gspo" "cispo" "reinforce"
  double clip_low = 0.2, clip_high = 0.2;
  double dual_clip = 0;                    // 0: off; else above 1
  double ratio_max = 1.2;                  // cispo: bound of the ratio that weighs a token
  std::string aggregation = "token-mean";  // "token-mean" "sequence-mean" "constant"
  double constant_length = 0;              // of "constant"; 0: see complete_algorithm
  double kl_coefficient = 0;
  std::string kl_estimator = "k3";  // "k1" "k2" "k3"; in the reward always k1
  std::string kl_in = "loss";       // or "reward"
  double kl_target = 0;             // 0: the coefficient is fixed
  double kl_horizon = 10000;        // samples over which the coefficient adapts
  /// Groups whose rewards do not differ: "drop" leaves them out of the denominator, "keep" counts them; "refill" is the
  /// buffer's matter and means "drop" here.
  std::string zero_variance = "drop";
  /// Completions that ended by length: "keep"; "mask" leaves them out of the loss; "penalty" lowers the reward by
  /// overlong_penalty_factor * (how far the length runs into the last overlong_buffer of overlong_max_tokens).
  /// Where these are 0 see complete_algorithm.
  std::string overlong = "keep";
  int64_t overlong_max_tokens = 0, overlong_buffer = 0;
  double overlong_penalty_factor = 1;
  int64_t num_epochs = 1, num_minibatches = 1;  // over one fixed batch
  std::string old_log_probs =
      "sampler";  // the ratio's denominator; "recomputed": by the trainer before its first update
  /// "none" "token-truncate" "token-band" "sequence-truncate" "sequence-mask" "geometric-mask"; needs "recomputed".
  std::string correction = "none";
  double correction_low = 0.5, correction_high = 2, correction_cap = 2;
  double gamma = 1, lambda = 0.95, value_clip = 0.2;
  double entropy_coefficient = 0;
  double temperature = 1;  // of sampling; part of the log-prob's definition
};

/// Names of the list, in its order.
std::vector<std::string> known_algorithms();
/// UsageError lists the known names.
AlgorithmOptions algorithm_preset(const std::string& name);
/// Fills what follows from the sampling limit where it is 0: constant_length and overlong_max_tokens with
/// max_new_tokens, overlong_buffer with a fifth of overlong_max_tokens (the paper's share). To be called before
/// check_algorithm.
void complete_algorithm(AlgorithmOptions& options, int64_t max_new_tokens);
/// UsageError naming the key whose value or combination is impossible.
void check_algorithm(const AlgorithmOptions& options);
/// Whether a step reads Trajectory::reference_log_probs.
bool needs_reference(const AlgorithmOptions& options);
/// Whether the advantage compares the samples of a prompt: then a group of one teaches nothing (B149).
bool needs_groups(const AlgorithmOptions& options);
/// Whether a step reads Trajectory::baseline_reward: a greedy sample beside each group.
bool needs_baseline_sample(const AlgorithmOptions& options);
/// Whether a step reads Trajectory::values.
bool needs_critic(const AlgorithmOptions& options);

}  // namespace troupe
