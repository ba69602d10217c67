// One sample on its way from the rollout worker to the trainer, and its packed form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

inline constexpr uint64_t kSamplesPerGroupLimit = 1u << 12;

/// sample id = group * 2^12 + index of the sample in its group.
inline uint64_t make_sample_id(uint64_t group, uint32_t index) { return group * kSamplesPerGroupLimit + index; }
inline uint64_t group_of_sample(uint64_t sample_id) { return sample_id / kSamplesPerGroupLimit; }

enum class FinishReason : uint8_t { kStop, kLength, kStopString, kEnvironment, kError };
const char* to_string(FinishReason reason);

/// From token `first_index` on, tokens were made by policy `version` (until the next run).
struct VersionRun {
  int32_t first_index = 0;
  int64_t version = 0;
  bool operator==(const VersionRun&) const = default;
};

/// One reward function's answer: a value, or the reason why there is none (never a silent 0).
struct RewardValue {
  std::string name;
  std::optional<double> value;
  std::string failure;
  bool operator==(const RewardValue&) const = default;
};

/// Index t of log_probs, loss_mask and versions speaks of token t given the tokens before it. Masks come from lengths.
struct Trajectory {
  uint64_t sample_id = 0;
  uint32_t attempt = 0;
  uint64_t group = 0;
  uint32_t num_turns = 1;
  std::vector<int32_t> tokens;  // [L] prompt and all turns
  int32_t prompt_length = 0;
  std::vector<uint8_t> loss_mask;    // [L] 1 where the policy sampled the token
  std::vector<float> log_probs;      // [L] of the sampler; 0 where the mask is 0
  std::vector<VersionRun> versions;  // of the sampled tokens, ascending first_index
  FinishReason finish_reason = FinishReason::kStop;
  std::string completion_text;  // of the last turn, for rewards; ends before the stop token
  std::vector<RewardValue> rewards;
  std::optional<double> total_reward;      // none: no reward function answered; left out of statistics and loss
  std::string metadata_json;               // the data's own fields, such as "answer"
  std::vector<float> reference_log_probs;  // [L] of the frozen reference; empty where no reference was asked
  std::vector<float> values;  // [L] of the critic: value of the state before token t; empty without a critic
  std::optional<double> baseline_reward;  // reward of the greedy completion of the same prompt (ReMax); none elsewhere
  std::optional<double> environment_reward;  // sum over the turns; none without an environment
  bool operator==(const Trajectory&) const = default;

  /// The version of the oldest sampled token: the sample's staleness. Throws Error without versions.
  int64_t oldest_version() const;
  int64_t num_sampled_tokens() const;
};

/// Little-endian packed form; `unpack_trajectory(pack_trajectory(t)) == t`.
std::vector<std::byte> pack_trajectory(const Trajectory& trajectory);
/// Throws Error on truncated, over-long or inconsistent bytes; never reads outside of them or allocates beyond their
/// size.
Trajectory unpack_trajectory(std::span<const std::byte> bytes);
/// Several in one piece, in order.
std::vector<std::byte> pack_trajectories(std::span<const Trajectory> trajectories);
std::vector<Trajectory> unpack_trajectories(std::span<const std::byte> bytes);  // throws as unpack_trajectory
/// Throws Error naming what is inconsistent (lengths, order of versions, masks inside the prompt).
void check_trajectory(const Trajectory& trajectory);

}  // namespace troupe
