#include "training/trajectory_log_probs.h"

#include "training/packing.h"

namespace troupe {

std::vector<std::vector<float>> trajectory_numbers(FullyShardedDecoder& model, std::span<const Trajectory> batch,
                                                   std::span<const std::vector<uint8_t>> wanted,
                                                   int64_t num_tokens_per_row, at::Device device,
                                                   const TokenNumber& number) {
  const at::NoGradGuard no_grad;
  auto& collectives = model.collectives();
  const auto ranks = pack_trajectories(batch, wanted, {collectives.size(), num_tokens_per_row, true});
  std::vector<int64_t> offsets;
  int64_t total = 0;
  for (const auto& t : batch) {
    offsets.push_back(total);
    total += static_cast<int64_t>(t.tokens.size());
  }
  // Each rank fills its part of one flat tensor; the sum over ranks adds zeros only.
  auto flat = at::zeros({std::max<int64_t>(total, 1)}, at::kFloat);
  const auto to_device = [&](const auto& values) { return at::tensor(values, at::kLong).to(device); };
  for (const auto& row : ranks[static_cast<size_t>(collectives.rank())]) {
    const auto hidden_ND = model.forward(to_device(row.tokens), row.layout).index_select(0, to_device(row.predictors));
    const auto numbers_N = number(hidden_ND, to_device(row.targets));
    if (row.is_filler) continue;
    const auto host = numbers_N.to(at::kFloat).cpu().contiguous();
    for (size_t n = 0; n < row.samples.size(); ++n)
      flat.mutable_data_ptr<float>()[offsets[static_cast<size_t>(row.samples[n])] + row.token_indices[n]] =
          host.const_data_ptr<float>()[n];
  }
  auto shared = flat.to(device);
  collectives.all_reduce(shared, "numbers of tokens");
  flat = shared.cpu();
  std::vector<std::vector<float>> result;
  for (size_t s = 0; s < batch.size(); ++s) {
    const auto* begin = flat.const_data_ptr<float>() + offsets[s];
    result.emplace_back(begin, begin + batch[s].tokens.size());
  }
  return result;
}

std::vector<std::vector<float>> trajectory_log_probs(FullyShardedDecoder& model, std::span<const Trajectory> batch,
                                                     std::span<const std::vector<uint8_t>> wanted,
                                                     const TrajectoryLogProbOptions& options) {
  return trajectory_numbers(model, batch, wanted, options.num_tokens_per_row, options.device,
                            [&](const Tensor& hidden_ND, const Tensor& targets_N) {
                              return log_probs(hidden_ND, model.head_weight(), targets_N, options.log_probs).log_prob_T;
                            });
}

}  // namespace troupe
