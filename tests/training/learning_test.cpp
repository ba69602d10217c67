// A Llama of about a million parameters learns: by GRPO from a rule on tokens, and by pre-training from text. No
// actors, no engine: samples come from a plain loop over the decoder's logits.
#include "base/philox.h"
#include "models/decoder.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"

namespace troupe {
namespace {

using namespace testing;

ModelConfig million_config() {
  auto config = learner_config();
  config.vocab_size = 32;
  config.hidden_size = 128;
  config.intermediate_size = 512;
  config.num_hidden_layers = 4;
  config.head_dim = 32;
  return config;
}

constexpr int32_t kPromptLength = 3, kCompletionLength = 6;

/// Share of the completion's tokens among the first quarter of the vocabulary: a quarter by chance.
double rule(const Trajectory& t) {
  const auto right = std::count_if(t.tokens.begin() + kPromptLength, t.tokens.end(), [](int32_t id) { return id < 8; });
  return static_cast<double>(right) / kCompletionLength;
}

/// `num_groups` prompts by id, eight samples each, drawn at temperature 1 with the numbers that an engine would use.
std::vector<Trajectory> sample_groups(const Decoder& decoder, uint64_t seed, uint64_t first_group, int num_groups) {
  const at::NoGradGuard no_grad;
  std::vector<Trajectory> batch;
  for (int g = 0; g < num_groups; ++g)
    for (uint32_t k = 0; k < 8; ++k) {
      Trajectory t;
      t.group = first_group + static_cast<uint64_t>(g);
      t.sample_id = make_sample_id(t.group, k);
      t.prompt_length = kPromptLength;
      for (uint32_t i = 0; i < kPromptLength; ++i)
        t.tokens.push_back(static_cast<int32_t>(random_words(seed, t.group, i, RandomStream::kDataOrder)[0] % 32));
      t.loss_mask.assign(kPromptLength, 0);
      t.log_probs.assign(kPromptLength, 0);
      t.versions = {{kPromptLength, 0}};
      batch.push_back(std::move(t));
    }
  for (int32_t step = 0; step < kCompletionLength; ++step) {
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
      const auto* row = log_p.const_data_ptr<float>() + static_cast<int64_t>(s) * 32;
      const double u = random_uniform(seed, t.sample_id, static_cast<uint32_t>(step), RandomStream::kSampling);
      int32_t id = 0;
      for (double sum = std::exp(row[0]); sum <= u && id < 31; sum += std::exp(row[id])) ++id;
      t.tokens.push_back(id);
      t.loss_mask.push_back(1);
      t.log_probs.push_back(row[id]);
    }
  }
  for (auto& t : batch) t.total_reward = rule(t);
  return batch;
}

double mean_reward(const std::vector<Trajectory>& batch) {
  double sum = 0;
  for (const auto& t : batch) sum += *t.total_reward;
  return sum / static_cast<double>(batch.size());
}

}  // namespace

TEST_CASE("a million-parameter Llama learns a rule by GRPO from three seeds") {
  const auto config = million_config();
  auto options = learner_options();
  options.optimizer.lr = 1e-3;
  options.max_norm = 1;
  options.schedule.total_steps = 60;
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    auto weights = learner_weights(config, seed, 0.05);
    with_one_rank(config, options, weights, [&](Learner& learner) {
      Decoder decoder(config);
      double first = 0, last_ten = 0;
      for (int step = 0; step < 60; ++step) {
        decoder.bind_all(learner.gather_weights(at::kFloat));
        const auto batch = sample_groups(decoder, seed, static_cast<uint64_t>(step) * 8, 8);
        if (step == 0) first = mean_reward(batch);
        if (step >= 50) last_ten += mean_reward(batch) / 10;
        const auto metrics = learner.train_policy(batch);
        if (metrics.count("logprob_diff/max") != 0) CHECK(metrics.at("logprob_diff/max") < 5e-5);
      }
      CHECK(first < 0.4);
      CHECK(last_ten > 0.9);
    });
  }
}

TEST_CASE("a million-parameter Llama learns to predict text") {
  const auto config = million_config();
  auto options = learner_options();
  options.optimizer.lr = 2e-3;
  options.max_norm = 1;
  options.schedule = {.warmup_steps = 5, .total_steps = 60};
  const std::string line = "the troupe plays and the house learns the play ";
  Document document;
  for (int i = 0; i < 12; ++i)
    for (const char c : line) document.tokens.push_back(c == ' ' ? 0 : c - 'a' + 1);
  with_one_rank(config, options, learner_weights(config, 1, 0.05), [&](Learner& learner) {
    LanguageModelBatch row;
    for (size_t begin = 0; begin + 1 < document.tokens.size(); begin += 128)
      append_document(row, document, begin, std::min(document.tokens.size(), begin + 128));
    const double before = learner.evaluate_language_model({row}).at("validation/loss");
    for (int step = 0; step < 60; ++step) learner.train_language_model({row});
    const double after = learner.evaluate_language_model({row}).at("validation/loss");
    CHECK(before == doctest::Approx(std::log(32.0)).epsilon(0.1));
    CHECK(after < 0.2);
  });
}

}  // namespace troupe
