#include "actors/group_buffer.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace troupe {
namespace {

constexpr uint32_t kFormat = 2;

DroppedGroup make_dropped(const BufferedGroup& group, const std::string& reason) {
  DroppedGroup dropped{group.group, reason, {}, {}};
  for (const auto& [id, sample] : group.samples) dropped.samples.emplace_back(id, sample.attempt);
  dropped.given_up.assign(group.given_up.begin(), group.given_up.end());
  return dropped;
}

}  // namespace

ZeroVariance parse_zero_variance(const std::string& name) {
  if (name == "keep") return ZeroVariance::kKeep;
  if (name == "drop") return ZeroVariance::kDrop;
  if (name == "refill") return ZeroVariance::kRefill;
  throw UsageError("algorithm.zero_variance = \"" + name + "\" is not one of \"drop\", \"keep\", \"refill\"");
}

bool has_zero_variance(const BufferedGroup& group) {
  if (group.expected < 2) return false;
  std::optional<double> first;
  for (const auto& [id, sample] : group.samples) {
    if (!sample.total_reward) continue;
    if (first && *sample.total_reward != *first) return false;
    first = sample.total_reward;
  }
  return true;
}

int64_t GroupBatch::num_samples() const {
  int64_t count = 0;
  for (const auto& group : groups) count += static_cast<int64_t>(group.samples.size());
  return count;
}

void GroupBuffer::admit(uint64_t group, int64_t index, int64_t expected) {
  require(expected > 0, "group ", group, " without samples");
  BufferedGroup fresh;
  fresh.group = group;
  fresh.index = index;
  fresh.expected = expected;
  require(groups_.try_emplace(group, std::move(fresh)).second, "group ", group, " is in the buffer already");
  require(order_.try_emplace(index, group).second, "place ", index, " of the buffer is taken");
}

PutResult GroupBuffer::put(Trajectory trajectory) {
  const auto found = groups_.find(trajectory.group);
  if (found == groups_.end()) {
    ++num_unknown_;
    return PutResult::kUnknown;
  }
  auto& group = found->second;
  const auto id = trajectory.sample_id;
  require(id % kSamplesPerGroupLimit < static_cast<uint64_t>(group.expected), "sample ", id, " is beyond the ",
          group.expected, " of its group");
  if (group.given_up.contains(id) || !group.samples.try_emplace(id, std::move(trajectory)).second) {
    ++num_duplicates_;
    return PutResult::kDuplicate;
  }
  settle(group.group);
  return PutResult::kAccepted;
}

void GroupBuffer::give_up(uint64_t sample_id, const std::string& reason) {
  const auto found = groups_.find(group_of_sample(sample_id));
  if (found == groups_.end() || found->second.samples.contains(sample_id)) return;
  last_failure_ = reason;
  if (found->second.given_up.try_emplace(sample_id, reason).second) settle(found->first);
}

void GroupBuffer::settle(uint64_t id) {
  const auto& group = groups_.at(id);
  if (!group.complete()) return;
  ++num_finalized_;
  int64_t num_left = 0, num_graded = 0;
  bool has_baseline = !options_.has_baseline;
  for (const auto& [sample_id, sample] : group.samples) {
    const bool is_graded = sample.total_reward.has_value();
    if (options_.has_baseline && sample_id == baseline_id(group)) {
      has_baseline = is_graded;
    } else {
      ++num_left;
      num_graded += is_graded;
    }
  }
  if (num_left == 0) {
    drop(id, "failed");
  } else if (num_graded == 0) {
    for (const auto& [sample_id, sample] : group.samples)
      for (const auto& reward : sample.rewards)
        if (!reward.value) last_failure_ = concat("reward ", reward.name, ": ", reward.failure);
    drop(id, "no_reward");
  } else if (!has_baseline) {
    drop(id, "no_baseline");
  } else if (options_.zero_variance == ZeroVariance::kRefill && has_zero_variance(group)) {
    drop(id, "zero_variance");
  }
}

void GroupBuffer::count_filtered(const BufferedGroup& group) {
  for (const auto& [id, sample] : group.samples) {
    if (!sample.total_reward) continue;
    filtered_reward_sum_ += *sample.total_reward;
    ++num_filtered_rewards_;
  }
}

void GroupBuffer::drop(uint64_t id, const std::string& reason) {
  const auto found = groups_.find(id);
  count_filtered(found->second);
  dropped_.push_back(make_dropped(found->second, reason));
  ++dropped_since_batch_[reason];
  ++num_dropped_in_wait_;
  order_.erase(found->second.index);
  groups_.erase(found);
}

std::vector<DroppedGroup> GroupBuffer::take_dropped() { return std::exchange(dropped_, {}); }

std::optional<GroupBatch> GroupBuffer::take_batch() {
  // Chooses on the side and commits at the end: as long as the batch is short nothing has been taken, and groups that
  // complete meanwhile may still take their older places.
  std::vector<uint64_t> places, left_out;
  auto rest = order_;
  const auto kept = [&] { return static_cast<int64_t>(places.size()); };
  const auto taken = [&] { return kept() + static_cast<int64_t>(left_out.size()); };
  const auto full = [&] { return kept() > 0 && taken() >= options_.num_groups_per_step; };
  while (!rest.empty() && !full()) {
    const auto end = rest.begin()->first + options_.window;
    auto at = rest.begin();
    while (at != rest.end() && at->first < end && !groups_.at(at->second).complete()) ++at;
    if (at == rest.end() || at->first >= end) break;
    const bool constant = options_.zero_variance == ZeroVariance::kDrop && has_zero_variance(groups_.at(at->second));
    (constant ? left_out : places).push_back(at->second);
    rest.erase(at);
    // A round of constant groups alone makes no batch: their slots go to other groups.
    if (places.empty() && static_cast<int64_t>(left_out.size()) == options_.num_groups_per_step) {
      for (const auto id : left_out) drop(id, "zero_variance");
      left_out.clear();
    }
  }
  const bool exhausted = num_dropped_in_wait_ + taken() >= judged_limit();
  if (exhausted && places.empty()) {
    std::string counts;
    for (const auto& [reason, count] : dropped_since_batch_)
      counts += concat(counts.empty() ? "" : ", ", count, " ", reason);
    fail("buffer: of ", num_dropped_in_wait_,
         " groups in a row none can be trained on (dropped since the last batch: ", counts,
         last_failure_.empty() ? "" : "; the last failure: " + last_failure_,
         "): the rewards never differ or never come. Check the rewards and the difficulty of the data, or set "
         "algorithm.zero_variance = \"keep\"");
  }
  if (!full() && !exhausted) return std::nullopt;
  GroupBatch batch;
  for (const auto id : left_out) {
    batch.left_out.push_back(make_dropped(groups_.at(id), "zero_variance"));
    count_filtered(groups_.at(id));
    order_.erase(groups_.at(id).index);
    groups_.erase(id);
  }
  for (const auto id : places) {
    order_.erase(groups_.at(id).index);
    auto& group = batch.groups.emplace_back(std::move(groups_.extract(id).mapped()));
    if (!options_.has_baseline) continue;
    group.baseline = std::move(group.samples.extract(baseline_id(group)).mapped());
    for (auto& [sample_id, sample] : group.samples) sample.baseline_reward = group.baseline->total_reward;
  }
  std::sort(batch.groups.begin(), batch.groups.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  batch.dropped = std::exchange(dropped_since_batch_, {});
  num_dropped_in_wait_ = 0;
  batch.filtered_reward_sum = std::exchange(filtered_reward_sum_, 0);
  batch.num_filtered_rewards = std::exchange(num_filtered_rewards_, 0);
  return batch;
}

std::vector<std::byte> GroupBuffer::save() const {
  ByteWriter out;
  out.put(kFormat);
  out.put<uint64_t>(groups_.size());
  for (const auto& [index, id] : order_) {
    const auto& group = groups_.at(id);
    out.put(group.group);
    out.put(group.index);
    out.put(group.expected);
    out.put<uint64_t>(group.samples.size());
    for (const auto& [sample_id, sample] : group.samples) out.put(pack_trajectory(sample));
    out.put<uint64_t>(group.given_up.size());
    for (const auto& [sample_id, reason] : group.given_up) {
      out.put(sample_id);
      out.put(reason);
    }
  }
  out.put(num_dropped_in_wait_);
  out.put(filtered_reward_sum_);
  out.put(num_filtered_rewards_);
  out.put<uint64_t>(dropped_since_batch_.size());
  for (const auto& [reason, count] : dropped_since_batch_) {
    out.put(reason);
    out.put(count);
  }
  return out.take();
}

void GroupBuffer::load(std::span<const std::byte> bytes, const std::vector<uint64_t>& live_groups) {
  ByteReader in(bytes, "groups.bin");
  const auto format = in.get<uint32_t>();
  require(format == kFormat, "groups.bin: format ", format, " is not ", kFormat);
  const auto num_groups = in.get_size(4 * sizeof(uint64_t));
  for (size_t i = 0; i < num_groups; ++i) {
    BufferedGroup group;
    group.group = in.get<uint64_t>();
    group.index = in.get<int64_t>();
    group.expected = in.get<int64_t>();
    const auto num_samples = in.get_size(sizeof(uint64_t));
    for (size_t s = 0; s < num_samples; ++s) {
      auto sample = unpack_trajectory(in.get_vector<std::byte>());
      require(sample.group == group.group, "groups.bin: sample ", sample.sample_id, " stands under group ",
              group.group);
      const auto id = sample.sample_id;
      group.samples.insert_or_assign(id, std::move(sample));
    }
    const auto num_given_up = in.get_size(2 * sizeof(uint64_t));
    for (size_t s = 0; s < num_given_up; ++s) {
      const auto id = in.get<uint64_t>();
      group.given_up[id] = in.get_string();
    }
    // A group that the director no longer counts was dropped between the two halves of the snapshot.
    if (std::find(live_groups.begin(), live_groups.end(), group.group) == live_groups.end()) continue;
    const auto index = group.index;
    const auto id = group.group;
    require(order_.try_emplace(index, id).second && groups_.try_emplace(id, std::move(group)).second,
            "groups.bin: group ", id, " stands twice");
  }
  num_dropped_in_wait_ = in.get<int64_t>();
  filtered_reward_sum_ = in.get<double>();
  num_filtered_rewards_ = in.get<int64_t>();
  const auto num_reasons = in.get_size(2 * sizeof(uint64_t));
  for (size_t i = 0; i < num_reasons; ++i) {
    const auto reason = in.get_string();
    dropped_since_batch_[reason] = in.get<int64_t>();
  }
  in.expect_end();
}

std::map<uint64_t, std::vector<uint64_t>> finished_samples(const GroupBufferOptions& options, std::string_view saved,
                                                           const std::vector<uint64_t>& live_groups,
                                                           int64_t num_samples_per_group, bool needs_reference) {
  std::map<uint64_t, std::vector<uint64_t>> finished;
  if (saved.empty()) return finished;
  GroupBuffer buffer(options);
  buffer.load(std::as_bytes(std::span(saved)), live_groups);
  for (const auto& [id, group] : buffer.groups()) {
    if (group.expected != num_samples_per_group)
      throw UsageError(concat("the checkpoint holds unfinished groups of ", group.expected,
                              " samples, and this run makes ", num_samples_per_group,
                              " (async_loop.num_samples_per_prompt, and one more where ",
                              "algorithm.advantage = \"greedy_baseline\"): resume with the same, or start another run ",
                              "from it with checkpoint.initial_load_path"));
    auto& samples = finished[id];
    for (const auto& [sample, trajectory] : group.samples) {
      if (needs_reference && trajectory.reference_log_probs.empty())
        throw UsageError(
            concat("the checkpoint holds finished samples without log-probs of a reference, which this run's ",
                   "algorithm.kl_coefficient asks for: start another run from it with checkpoint.initial_load_path"));
      samples.push_back(sample);
    }
    for (const auto& [sample, reason] : group.given_up) samples.push_back(sample);
  }
  return finished;
}

int64_t GroupBuffer::num_waiting() const {
  return std::count_if(groups_.begin(), groups_.end(), [](const auto& entry) { return entry.second.complete(); });
}

int64_t GroupBuffer::num_in_flight() const { return static_cast<int64_t>(groups_.size()) - num_waiting(); }

std::string GroupBuffer::describe() const {
  std::string text = concat(num_waiting(), " groups complete, ", num_in_flight(), " in flight");
  if (!order_.empty()) {
    const auto& oldest = groups_.at(order_.begin()->second);
    text += concat("; the oldest, group ", oldest.group, ", has ", oldest.samples.size(), " of ", oldest.expected,
                   " samples");
  }
  return text;
}

}  // namespace troupe
