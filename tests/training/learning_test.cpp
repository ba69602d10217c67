// A Llama of about a million parameters learns: by GRPO from a rule on tokens, and by pre-training from text. No
// actors, no engine: samples come from a plain loop over the decoder's logits.
#include "tests/doctest.h"
#include "tests/training/toy_policy.h"

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
        const auto batch = sample_groups(decoder, {}, seed, static_cast<uint64_t>(step) * 8);
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
