// The critic: values of states, and its update towards the returns of generalised advantage estimation.
#include <algorithm>

#include "training/advantages.h"
#include "training/learner_implementation.h"
#include "training/policy_samples.h"
#include "training/value_loss.h"

namespace troupe {
namespace {

using Masks = std::vector<std::vector<uint8_t>>;  // [S][L]

/// One call of train_values.
class ValueStep {
 public:
  ValueStep(Learner::Implementation& learner, std::span<const Trajectory> batch, double kl_coefficient)
      : learner_(learner),
        algorithm_(learner.options_.algorithm),
        batch_(batch),
        samples_(prepare_samples(batch, algorithm_, kl_coefficient)) {
    require(needs_critic(algorithm_), "algorithm.advantage = \"", algorithm_.advantage, "\" has no critic to train");
  }

  Metrics run() {
    for (int64_t epoch = 0; epoch < algorithm_.num_epochs; ++epoch) {
      // Keys above every prompt epoch, as the policy's.
      const auto key =
          (uint64_t{1} << 63) | (static_cast<uint64_t>(learner_.step_) << 16) | static_cast<uint64_t>(epoch);
      for (const auto& part : cut_minibatches(batch_, algorithm_.num_minibatches, learner_.options_.seed, key))
        update(part);
    }
    return metrics();
  }

 private:
  void update(const std::vector<size_t>& part) {
    Masks wanted;
    for (const auto& t : batch_) wanted.emplace_back(t.tokens.size(), 0);
    for (const size_t s : part)
      if (samples_.takes_part[s] != 0) wanted[s] = batch_[s].loss_mask;
    const auto rows = learner_.own_rows(pack_trajectories(
        batch_, wanted, {learner_.groups_.num_data_ranks(), learner_.options_.num_tokens_per_microbatch, true}));
    if (rows.empty()) return;
    const auto num_tokens = static_cast<double>(count_loss_tokens(batch_, samples_, part).num_tokens);
    MetricSums sums;
    const auto update = learner_.update(rows, sums, [&](const LearnerRow& row, const Tensor& hidden_ND) {
      return loss_of(row, hidden_ND, num_tokens, sums);
    });
    num_updates_ += 1;
    grad_norm_ += update.grad_norm;
    lr_ = update.lr;
    seconds_ += update.forward_backward_s + update.optimizer_s;
    num_skipped_ += update.is_skipped;
    loss_ += sums.sum("loss");
  }

  Tensor loss_of(const LearnerRow& learner_row, const Tensor& hidden_ND, double num_tokens, MetricSums& sums) {
    const auto& row = learner_row.own;
    const auto values_N = learner_.scores(hidden_ND);
    const auto numbers = [&](const auto& get) {
      std::vector<float> list;
      for (size_t n = 0; n < row.samples.size(); ++n)
        list.push_back(
            static_cast<float>(get(static_cast<size_t>(row.samples[n]), static_cast<size_t>(row.token_indices[n]))));
      return at::tensor(list, at::kFloat).to(values_N.device());
    };
    const auto old_N = numbers([&](size_t s, size_t i) { return batch_[s].values[i]; });
    const auto returns_N = numbers([&](size_t s, size_t i) { return samples_.returns[s][i]; });
    const auto clip = algorithm_.value_clip > 0 ? std::optional(algorithm_.value_clip) : std::nullopt;
    const double weight = row.is_filler ? 0 : 1 / num_tokens;
    const auto loss = value_loss(values_N, old_N, returns_N, clip).sum() * weight;
    sums.add("loss", loss.item<double>());
    return loss;
  }

  /// Of the values before the update: how much of the returns' spread they explain.
  Metrics metrics() const {
    Moments returns, errors, values;
    for (size_t s = 0; s < batch_.size(); ++s) {
      if (samples_.takes_part[s] == 0) continue;
      for (size_t i = 0; i < batch_[s].tokens.size(); ++i) {
        if (batch_[s].loss_mask[i] == 0) continue;
        returns.add(samples_.returns[s][i]);
        values.add(batch_[s].values[i]);
        errors.add(samples_.returns[s][i] - batch_[s].values[i]);
      }
    }
    const double spread = returns.population_variance();
    return {{"critic/loss", num_updates_ > 0 ? loss_ / num_updates_ : 0},
            {"critic/grad_norm", num_updates_ > 0 ? grad_norm_ / num_updates_ : 0},
            {"critic/lr", lr_},
            {"critic/skipped", num_skipped_},
            {"critic/value_mean", values.mean},
            {"critic/return_mean", returns.mean},
            {"critic/explained_variance", spread > 0 ? 1 - errors.population_variance() / spread : 0},
            {"critic/time(s)", seconds_}};
  }

  Learner::Implementation& learner_;
  const AlgorithmOptions& algorithm_;
  std::span<const Trajectory> batch_;
  PolicySamples samples_;
  double num_updates_ = 0, num_skipped_ = 0, loss_ = 0, grad_norm_ = 0, lr_ = 0, seconds_ = 0;
};

}  // namespace

std::vector<std::vector<float>> Learner::values(const std::vector<Trajectory>& batch) {
  auto& self = *implementation_;
  Masks wanted;
  for (const auto& t : batch) wanted.push_back(t.loss_mask);
  return self.numbers(batch, wanted,
                      [&](const LearnerRow&, const Tensor& hidden_ND) { return self.scores(hidden_ND); });
}

Metrics Learner::train_values(const std::vector<Trajectory>& batch, double kl_coefficient) {
  check_algorithm(implementation_->options_.algorithm);
  return ValueStep(*implementation_, batch, kl_coefficient).run();
}

}  // namespace troupe
