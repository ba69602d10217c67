#include "base/trajectory.h"

#include <algorithm>

#include "base/bytes.h"

namespace troupe {
namespace {
constexpr uint32_t kFormat = 3;
}

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kEnvironment:
      return "environment";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

int64_t Trajectory::oldest_version() const {
  require(!versions.empty(), "sample ", sample_id, ": no policy version");
  return std::min_element(versions.begin(), versions.end(),
                          [](const auto& a, const auto& b) { return a.version < b.version; })
      ->version;
}

int64_t Trajectory::num_sampled_tokens() const { return std::count(loss_mask.begin(), loss_mask.end(), uint8_t{1}); }

void check_trajectory(const Trajectory& t) {
  const auto length = t.tokens.size();
  auto bad = [&](auto... parts) { fail("sample ", t.sample_id, ": ", parts...); };
  if (t.group != group_of_sample(t.sample_id)) bad("group ", t.group, " does not fit the sample id");
  if (t.prompt_length < 0 || static_cast<size_t>(t.prompt_length) > length)
    bad("prompt length ", t.prompt_length, " of ", length, " tokens");
  if (t.loss_mask.size() != length) bad(t.loss_mask.size(), " mask entries for ", length, " tokens");
  if (t.log_probs.size() != length) bad(t.log_probs.size(), " log-probs for ", length, " tokens");
  for (const auto* optional : {&t.reference_log_probs, &t.values})
    if (!optional->empty() && optional->size() != length)
      bad(optional->size(), optional == &t.values ? " values" : " reference log-probs", " for ", length, " tokens");
  for (size_t i = 0; i < length; ++i) {
    if (t.loss_mask[i] > 1) bad("mask value ", int{t.loss_mask[i]}, " at token ", i);
    if (t.loss_mask[i] == 1 && i < static_cast<size_t>(t.prompt_length))
      bad("the prompt's token ", i, " is marked as sampled");
    if (t.loss_mask[i] == 0 && t.log_probs[i] != 0) bad("a log-prob at token ", i, ", which was not sampled");
  }
  int32_t previous = -1;
  for (const auto& run : t.versions) {
    if (run.first_index <= previous || static_cast<size_t>(run.first_index) >= length)
      bad("version run at token ", run.first_index, " is out of order");
    previous = run.first_index;
  }
  if (t.num_sampled_tokens() > 0 && t.versions.empty()) bad("sampled tokens without a policy version");
}

std::vector<std::byte> pack_trajectory(const Trajectory& t) {
  ByteWriter out;
  out.put(kFormat);
  out.put(t.sample_id);
  out.put(t.attempt);
  out.put(t.group);
  out.put(t.num_turns);
  out.put(t.tokens);
  out.put(t.prompt_length);
  out.put(t.loss_mask);
  out.put(t.log_probs);
  out.put<uint64_t>(t.versions.size());
  for (const auto& run : t.versions) {
    out.put(run.first_index);
    out.put(run.version);
  }
  out.put(t.finish_reason);
  out.put(t.completion_text);
  out.put<uint64_t>(t.rewards.size());
  for (const auto& reward : t.rewards) {
    out.put(reward.name);
    out.put<uint8_t>(reward.value.has_value());
    out.put<double>(reward.value.value_or(0));
    out.put(reward.failure);
  }
  out.put<uint8_t>(t.total_reward.has_value());
  out.put<double>(t.total_reward.value_or(0));
  out.put(t.metadata_json);
  out.put(t.reference_log_probs);
  out.put(t.values);
  out.put<uint8_t>(t.baseline_reward.has_value());
  out.put<double>(t.baseline_reward.value_or(0));
  out.put<uint8_t>(t.environment_reward.has_value());
  out.put<double>(t.environment_reward.value_or(0));
  return out.take();
}

Trajectory unpack_trajectory(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "trajectory");
  const auto format = in.get<uint32_t>();
  require(format == kFormat, "trajectory: format ", format, " is not ", kFormat);
  Trajectory t;
  t.sample_id = in.get<uint64_t>();
  t.attempt = in.get<uint32_t>();
  t.group = in.get<uint64_t>();
  t.num_turns = in.get<uint32_t>();
  t.tokens = in.get_vector<int32_t>();
  t.prompt_length = in.get<int32_t>();
  t.loss_mask = in.get_vector<uint8_t>();
  t.log_probs = in.get_vector<float>();
  t.versions.resize(in.get_size(sizeof(int32_t) + sizeof(int64_t)));
  for (auto& run : t.versions) {
    run.first_index = in.get<int32_t>();
    run.version = in.get<int64_t>();
  }
  const auto reason = in.get<uint8_t>();
  require(reason <= static_cast<uint8_t>(FinishReason::kError), "trajectory: finish reason ", int{reason},
          " is unknown");
  t.finish_reason = static_cast<FinishReason>(reason);
  t.completion_text = in.get_string();
  t.rewards.resize(in.get_size(2 * sizeof(uint64_t) + 1 + sizeof(double)));
  for (auto& reward : t.rewards) {
    reward.name = in.get_string();
    const bool known = in.get<uint8_t>() != 0;
    const auto value = in.get<double>();
    if (known) reward.value = value;
    reward.failure = in.get_string();
  }
  const bool known = in.get<uint8_t>() != 0;
  const auto value = in.get<double>();
  if (known) t.total_reward = value;
  t.metadata_json = in.get_string();
  t.reference_log_probs = in.get_vector<float>();
  t.values = in.get_vector<float>();
  const bool has_baseline = in.get<uint8_t>() != 0;
  const auto baseline = in.get<double>();
  if (has_baseline) t.baseline_reward = baseline;
  const bool has_environment = in.get<uint8_t>() != 0;
  const auto environment = in.get<double>();
  if (has_environment) t.environment_reward = environment;
  in.expect_end();
  check_trajectory(t);
  return t;
}

std::vector<std::byte> pack_trajectories(std::span<const Trajectory> trajectories) {
  ByteWriter out;
  out.put<uint64_t>(trajectories.size());
  for (const auto& trajectory : trajectories) out.put(pack_trajectory(trajectory));
  return out.take();
}

std::vector<Trajectory> unpack_trajectories(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "trajectories");
  std::vector<Trajectory> trajectories;
  const auto count = in.get_size(sizeof(uint64_t));
  for (size_t i = 0; i < count; ++i) trajectories.push_back(unpack_trajectory(in.get_vector<std::byte>()));
  in.expect_end();
  return trajectories;
}

}  // namespace troupe
