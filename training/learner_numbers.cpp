// What a model says of given trajectories, without gradient: log-probs of anchors and references, values of a critic.
#include "training/learner_implementation.h"

namespace troupe {

std::vector<std::vector<float>> Learner::Implementation::numbers(std::span<const Trajectory> batch,
                                                                 std::span<const std::vector<uint8_t>> wanted,
                                                                 const RowNumbers& numbers) {
  std::vector<int64_t> offsets;
  int64_t total = 0;
  for (const auto& t : batch) {
    offsets.push_back(total);
    total += static_cast<int64_t>(t.tokens.size());
  }
  // Each rank fills its part of one flat tensor; the sum over ranks adds zeros only.
  auto flat = at::zeros({std::max<int64_t>(total, 1)}, at::kFloat);
  MetricSums none;
  const auto rows =
      own_rows(pack_trajectories(batch, wanted, {groups_.num_data_ranks(), options_.num_tokens_per_microbatch, true}));
  evaluate(rows, none, [&](const LearnerRow& learner_row, const Tensor& hidden_ND) {
    const auto numbers_N = numbers(learner_row, hidden_ND);
    const auto& row = learner_row.own;
    if (row.is_filler) return;
    const auto host = numbers_N.to(at::kFloat).cpu().contiguous();
    for (size_t n = 0; n < row.samples.size(); ++n)
      flat.mutable_data_ptr<float>()[offsets[static_cast<size_t>(row.samples[n])] + row.token_indices[n]] =
          host.const_data_ptr<float>()[n];
  });
  auto shared = flat.to(options_.parallel.sharding.device);
  groups_.losses().all_reduce(shared, "numbers of tokens");
  if (groups_.pipeline() != nullptr) {
    const auto& plan = model_.plan();
    groups_.pipeline()->broadcast(shared, plan.owner(plan.num_units() - 1), "numbers of tokens");
  }
  flat = shared.cpu();
  std::vector<std::vector<float>> result;
  for (size_t s = 0; s < batch.size(); ++s) {
    const auto* begin = flat.const_data_ptr<float>() + offsets[s];
    result.emplace_back(begin, begin + batch[s].tokens.size());
  }
  return result;
}

std::vector<std::vector<float>> Learner::Implementation::log_probs(std::span<const Trajectory> batch,
                                                                   std::span<const std::vector<uint8_t>> wanted,
                                                                   double temperature) {
  return numbers(batch, wanted, [&](const LearnerRow& row, const Tensor& hidden_ND) {
    return troupe::log_probs(hidden_ND, head_weight(), row.targets_N, log_prob_options(temperature)).log_prob_T;
  });
}

}  // namespace troupe
