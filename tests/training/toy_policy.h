// A toy for policies: prompts of three random tokens, completions of six, and a rule on the completion's tokens that a
// random policy meets by a quarter. Samples come from a plain loop over the decoder's logits: no actors, no engine.
#pragma once

#include "base/philox.h"
#include "models/decoder.h"
#include "tests/training/learner_support.h"

namespace troupe::testing {

struct ToyOptions {
  int32_t vocab_size = 32, prompt_length = 3, completion_length = 6;
  int num_groups = 8;
  uint32_t num_samples = 8;  // of each group
  bool greedy = false;
};

/// Share of the completion's tokens among the first quarter of the vocabulary.
inline double toy_rule(const Trajectory& t, const ToyOptions& toy) {
  const auto right = std::count_if(t.tokens.begin() + toy.prompt_length, t.tokens.end(),
                                   [&](int32_t id) { return id < toy.vocab_size / 4; });
  return static_cast<double>(right) / toy.completion_length;
}

inline std::vector<Trajectory> toy_prompts(const ToyOptions& toy, uint64_t seed, uint64_t first_group) {
  std::vector<Trajectory> batch;
  for (int g = 0; g < toy.num_groups; ++g)
    for (uint32_t k = 0; k < toy.num_samples; ++k) {
      Trajectory t;
      t.group = first_group + static_cast<uint64_t>(g);
      t.sample_id = make_sample_id(t.group, k);
      t.prompt_length = toy.prompt_length;
      for (uint32_t i = 0; i < static_cast<uint32_t>(toy.prompt_length); ++i)
        t.tokens.push_back(static_cast<int32_t>(random_words(seed, t.group, i, RandomStream::kDataOrder)[0] %
                                                static_cast<uint32_t>(toy.vocab_size)));
      t.loss_mask.assign(t.tokens.size(), 0);
      t.log_probs.assign(t.tokens.size(), 0);
      t.versions = {{toy.prompt_length, 0}};
      batch.push_back(std::move(t));
    }
  return batch;
}

/// Groups by id, drawn at temperature 1 with the numbers that an engine would use, with their rewards.
inline std::vector<Trajectory> sample_groups(const Decoder& decoder, const ToyOptions& toy, uint64_t seed,
                                             uint64_t first_group) {
  const at::NoGradGuard no_grad;
  auto batch = toy_prompts(toy, seed, first_group);
  for (int32_t step = 0; step < toy.completion_length; ++step) {
    PackedLayout layout;
    std::vector<int32_t> tokens;
    std::vector<int64_t> last;
    for (const auto& t : batch) {
      layout.segments.push_back({layout.num_tokens, static_cast<int32_t>(t.tokens.size()), -1});
      layout.num_tokens += static_cast<int32_t>(t.tokens.size());
      tokens.insert(tokens.end(), t.tokens.begin(), t.tokens.end());
      last.push_back(layout.num_tokens - 1);
    }
    const auto hidden =
        decoder.forward(at::tensor(tokens, at::kLong), layout).index_select(0, at::tensor(last, at::kLong));
    const auto log_p = at::log_softmax(decoder.logits(hidden), 1).contiguous();
    for (size_t s = 0; s < batch.size(); ++s) {
      auto& t = batch[s];
      const auto* row = log_p.const_data_ptr<float>() + static_cast<int64_t>(s) * toy.vocab_size;
      const double u = random_uniform(seed, t.sample_id, static_cast<uint32_t>(step), RandomStream::kSampling);
      int32_t id = 0;
      for (double sum = std::exp(row[0]); sum <= u && id < toy.vocab_size - 1; sum += std::exp(row[id])) ++id;
      if (toy.greedy) id = static_cast<int32_t>(std::max_element(row, row + toy.vocab_size) - row);
      t.tokens.push_back(id);
      t.loss_mask.push_back(1);
      t.log_probs.push_back(row[id]);
    }
  }
  for (auto& t : batch) t.total_reward = toy_rule(t, toy);
  return batch;
}

inline double mean_reward(const std::vector<Trajectory>& batch) {
  double sum = 0;
  for (const auto& t : batch) sum += *t.total_reward;
  return sum / static_cast<double>(batch.size());
}

}  // namespace troupe::testing
