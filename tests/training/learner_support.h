// A tiny random model, hand-made trajectories and ranks as threads, for tests of the learner.
#pragma once

#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "training/learner.h"

namespace troupe::testing {

inline ModelConfig learner_config(bool tied = true) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.tie_word_embeddings = tied;
  return config;
}

/// Weights from a fixed seed, by name.
inline TensorMap learner_weights(const ModelConfig& config, uint64_t seed = 1, double scale = 0.2) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  TensorMap weights;
  for (const auto& spec : parameter_specs(config)) {
    auto weight = at::randn(spec.shape, generator, at::kFloat) * scale;
    if (spec.shape.size() == 1) weight = weight + 1;
    weights[spec.name] = weight;
  }
  return weights;
}

/// `num_groups` groups of `num_samples` with ragged completions, a tool token here and there, and made-up log-probs.
inline std::vector<Trajectory> learner_batch(int num_groups = 3, int num_samples = 4) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto draw = [&](int64_t below) {
    return static_cast<int32_t>(at::randint(below, {1}, generator, at::kLong).item<int64_t>());
  };
  std::vector<Trajectory> batch;
  for (int g = 0; g < num_groups; ++g) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < 4 + g; ++i) prompt.push_back(draw(40));
    for (int k = 0; k < num_samples; ++k) {
      Trajectory t;
      t.group = static_cast<uint64_t>(g);
      t.sample_id = make_sample_id(t.group, static_cast<uint32_t>(k));
      t.tokens = prompt;
      t.prompt_length = static_cast<int32_t>(prompt.size());
      const int length = 1 + draw(9);
      for (int i = 0; i < length; ++i) t.tokens.push_back(draw(40));
      t.loss_mask.assign(t.tokens.size(), 0);
      t.log_probs.assign(t.tokens.size(), 0);
      t.reference_log_probs.assign(t.tokens.size(), 0);
      for (size_t i = prompt.size(); i < t.tokens.size(); ++i) {
        t.loss_mask[i] = i != prompt.size() + 2;  // the third is a tool's
        t.log_probs[i] = t.loss_mask[i] != 0 ? -3.0f - 0.1f * static_cast<float>(draw(14)) : 0.0f;
        t.reference_log_probs[i] = -3.0f - 0.1f * static_cast<float>(draw(14));
      }
      t.versions = {{t.prompt_length, 0}};
      t.total_reward = 0.25 * draw(5) + 0.01 * k;
      batch.push_back(std::move(t));
    }
  }
  return batch;
}

/// Options that train in fp32 and clip nothing.
inline LearnerOptions learner_options() {
  LearnerOptions options;
  options.optimizer.lr = 1e-3;
  options.max_norm = 0;
  options.schedule.total_steps = 1000;
  return options;
}

inline std::unique_ptr<Learner> make_learner(const ModelConfig& config, Collectives& collectives,
                                             const LearnerOptions& options, const TensorMap& weights) {
  auto learner = std::make_unique<Learner>(config, collectives, options);
  learner->load([&](const std::string& name) { return weights.at(name); });
  return learner;
}

/// Runs `body(rank's learner, its groups)` on every rank of a mesh as a thread; a rank that throws aborts the others,
/// and the first error is thrown here.
inline void with_mesh(const MeshDegrees& degrees, const ModelConfig& config, const LearnerOptions& options,
                      const TensorMap& weights,
                      const std::function<void(Learner& learner, const RankGroups& groups)>& body) {
  auto ranks = make_thread_groups(degrees, std::chrono::seconds(30));
  std::mutex mutex;
  std::exception_ptr first_error;
  std::vector<std::thread> threads;
  for (auto& groups : ranks) {
    threads.emplace_back([&] {
      try {
        if (degrees.num_ranks() > 2) at::set_num_threads(1);
        Learner learner(config, groups, options);
        learner.load([&](const std::string& name) { return weights.at(name); });
        body(learner, groups);
        groups.world().barrier("end of test");
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
        groups.abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

/// The same over data ranks alone.
inline void with_ranks(int num_ranks, const ModelConfig& config, const LearnerOptions& options,
                       const TensorMap& weights, const std::function<void(Learner& learner, int rank)>& body) {
  with_mesh({.shard = num_ranks}, config, options, weights,
            [&](Learner& learner, const RankGroups& groups) { body(learner, groups.world().rank()); });
}

inline void with_one_rank(const ModelConfig& config, const LearnerOptions& options, const TensorMap& weights,
                          const std::function<void(Learner& learner)>& body) {
  with_ranks(1, config, options, weights, [&](Learner& learner, int) { body(learner); });
}

/// Largest |a - b| over all tensors, relative to the largest |b| of all.
inline double relative_difference(const TensorMap& a, const TensorMap& b) {
  double difference = 0, largest = 1e-30;
  for (const auto& [name, tensor] : b) {
    difference = std::max(difference, (a.at(name) - tensor).abs().max().item<double>());
    largest = std::max(largest, tensor.abs().max().item<double>());
  }
  return difference / largest;
}

}  // namespace troupe::testing
