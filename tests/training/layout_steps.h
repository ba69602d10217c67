// What tests of layouts share: packed documents, the steps that two layouts are compared by, a model with experts, and
// checkpoints that go from layout to layout.
#pragma once

#include <filesystem>

#include "parallel/checkpoint.h"
#include "tests/training/learner_support.h"

namespace troupe::testing {

/// Rows of packed documents from a fixed seed; `lengths_of` gives those of a row's documents.
inline std::vector<LanguageModelBatch> packed_rows(int num_rows,
                                                   const std::function<std::vector<int64_t>(int row)>& lengths_of,
                                                   int64_t num_ids = 40, uint64_t seed = 3) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<LanguageModelBatch> rows(static_cast<size_t>(num_rows));
  for (int r = 0; r < num_rows; ++r)
    for (const auto length : lengths_of(r)) {
      Document document;
      const auto ids = at::randint(num_ids, {length}, generator, at::kLong);
      for (int64_t i = 0; i < length; ++i) document.tokens.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
      append_document(rows[static_cast<size_t>(r)], document, 0, document.tokens.size());
    }
  return rows;
}

/// Of one to three documents a row, the shortest of `shortest` tokens, with odd lengths among them.
inline std::vector<LanguageModelBatch> ragged_rows(int num_rows, int64_t shortest, int64_t num_ids = 40,
                                                   uint64_t seed = 3) {
  const auto lengths_of = [=](int r) {
    std::vector<int64_t> lengths;
    for (int d = 0; d < 1 + r % 3; ++d) lengths.push_back(shortest + (5 * r + 3 * d) % 9);
    return lengths;
  };
  return packed_rows(num_rows, lengths_of, num_ids, seed);
}

/// Every `num_data_ranks`th row.
inline std::vector<LanguageModelBatch> share_of(const std::vector<LanguageModelBatch>& rows, int data_rank,
                                                int num_data_ranks) {
  std::vector<LanguageModelBatch> mine;
  for (size_t r = static_cast<size_t>(data_rank); r < rows.size(); r += static_cast<size_t>(num_data_ranks))
    mine.push_back(rows[r]);
  return mine;
}

/// What a step gives.
struct Step {
  double loss = 0, norm = 0;
  TensorMap gradients;
};

inline Step step_of(Learner& learner, const Metrics& metrics) {
  return {metrics.at("loss/mean"), metrics.at("grad_norm"), learner.model().gather_gradients()};
}

/// Loss, gradient norm and gradients within 1e-6, relative.
inline void require_equal(const Step& got, const Step& expected, const std::string& what) {
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(std::abs(b), 1e-2); };
  require(near(got.loss, expected.loss), what, ": loss ", got.loss, " instead of ", expected.loss);
  require(near(got.norm, expected.norm), what, ": gradient norm ", got.norm, " instead of ", expected.norm);
  const auto difference = relative_difference(got.gradients, expected.gradients);
  require(difference < 1e-6, what, ": gradients differ by ", difference);
}

/// A language-model step on this rank's share of `rows` and a GRPO step, each from `weights`.
inline std::vector<Step> take_steps(Learner& learner, const TensorMap& weights,
                                    const std::vector<LanguageModelBatch>& rows, int data_rank = 0,
                                    int num_data_ranks = 1) {
  std::vector<Step> steps;
  for (const bool is_policy : {false, true}) {
    learner.load([&](const std::string& name) { return weights.at(name); });
    steps.push_back(step_of(learner, is_policy
                                         ? learner.train_policy(learner_batch(2, 4))
                                         : learner.train_language_model(share_of(rows, data_rank, num_data_ranks))));
  }
  return steps;
}

/// The same on a layout's rank, held to what one rank gave.
inline void require_equal_steps(Learner& learner, const RankGroups& groups, const TensorMap& weights,
                                const std::vector<LanguageModelBatch>& rows, const std::vector<Step>& expected,
                                const std::string& what) {
  const auto got = take_steps(learner, weights, rows, groups.data_rank(), groups.num_data_ranks());
  for (size_t i = 0; i < expected.size(); ++i) require_equal(got[i], expected[i], concat(what, ", step ", i));
}

/// A small Llama whose layers but the first have experts, of which each token takes two.
inline ModelConfig config_with_experts(int64_t num_layers, int64_t num_experts, bool tied = true) {
  auto config = learner_config(tied);
  config.num_hidden_layers = num_layers;
  config.layers.resize(static_cast<size_t>(num_layers));
  for (size_t layer = 1; layer < config.layers.size(); ++layer) config.layers[layer].has_experts = true;
  config.moe.num_experts = num_experts;
  config.moe.num_experts_per_token = 2;
  config.moe.intermediate_size = 16;
  config.moe.normalise = true;
  return config;
}

/// Weights whose routers prefer two experts by their choosing bias; a lead of 2 is more than scores can differ.
inline TensorMap one_sided_weights(const ModelConfig& config, int64_t first, int64_t second, double lead) {
  auto weights = learner_weights(config);
  for (auto& [name, tensor] : weights) {
    if (!name.ends_with("e_score_correction_bias")) continue;
    tensor = at::zeros_like(tensor);
    tensor[first] = tensor[second] = lead;
  }
  return weights;
}

/// The first layout takes a step on `rows`; each of the others loads what the one before it saved, must hold the first
/// one's weights and optimizer states bit for bit, and saves.
inline void require_checkpoints_to_fit(const std::vector<MeshDegrees>& layouts, const ModelConfig& config,
                                       const LearnerOptions& options, const std::vector<LanguageModelBatch>& rows,
                                       const std::string& folder_name) {
  const auto folder = std::filesystem::temp_directory_path() / concat(folder_name, "_", ::getpid());
  std::filesystem::remove_all(folder);
  const auto weights = learner_weights(config);
  std::map<std::string, TensorMap> saved;  // the first layout's state, by kind
  for (size_t i = 0; i < layouts.size(); ++i) {
    with_mesh(layouts[i], config, options, weights, [&](Learner& learner, const RankGroups& groups) {
      if (i == 0) {
        learner.train_language_model(rows);
      } else {
        auto values = sharded_values(learner.model(), learner.optimizer_state());
        load_checkpoint_values(folder / concat("step-", i), values);
        learner.model().parameters_changed();
      }
      // Optimizer states through the same gather as weights.
      std::map<std::string, TensorMap> state;
      state["parameter"] = learner.gather_weights(at::kFloat);
      for (const auto& [kind, units] : learner.optimizer_state()) {
        for (size_t u = 0; u < units.size(); ++u) learner.model().shards()[u].gradient.copy_(units[u]);
        state[kind] = learner.model().gather_gradients();
      }
      if (groups.world().rank() == 0) {
        if (i == 0)
          for (const auto& [kind, tensors] : state)
            for (const auto& [name, tensor] : tensors) saved[kind][name] = tensor.clone();
        for (const auto& [kind, tensors] : saved)
          for (const auto& [name, tensor] : tensors)
            require(at::equal(state.at(kind).at(name), tensor), describe(layouts[i]), ": ", kind, " of ", name,
                    " differs");
      }
      if (!groups.is_first_replica()) return;
      CheckpointWriter writer(groups.copy(), {});
      const auto step = static_cast<int64_t>(i) + 1;
      writer.save({folder, step, step, "{}", "", 0}, sharded_values(learner.model(), learner.optimizer_state()));
    });
  }
  std::filesystem::remove_all(folder);
}

}  // namespace troupe::testing
