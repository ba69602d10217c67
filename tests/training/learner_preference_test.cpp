// Reward models and DPO against plain autograd, against a reference implementation's scores, and over ranks.
#include "models/formats/checkpoint_reader.h"
#include "models/formats/safetensors.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"

namespace troupe {
namespace {

using namespace testing;

ModelConfig reward_config() {
  auto config = learner_config(false);
  config.num_labels = 1;
  return config;
}

/// Pairs of ragged answers; some share a beginning beyond the prompt.
std::vector<PreferencePair> learner_pairs(int num_pairs) {
  std::vector<PreferencePair> pairs;
  uint32_t state = 7;
  const auto draw = [&](int32_t limit) {
    state = state * 1664525 + 1013904223;
    return static_cast<int32_t>((state >> 16) % static_cast<uint32_t>(limit));
  };
  for (int p = 0; p < num_pairs; ++p) {
    PreferencePair pair;
    pair.id = static_cast<uint64_t>(100 + p);
    pair.margin = 0.25 * (p % 3);
    std::vector<int32_t> prompt;
    for (int i = 0; i < 2 + p % 4; ++i) prompt.push_back(draw(40));
    const std::vector<int32_t> shared_answer(static_cast<size_t>(p % 2), 9);
    for (auto* document : {&pair.chosen, &pair.rejected}) {
      document->tokens = prompt;
      document->tokens.insert(document->tokens.end(), shared_answer.begin(), shared_answer.end());
      const int length = 1 + draw(6);
      for (int i = 0; i < length; ++i) document->tokens.push_back(draw(20) + (document == &pair.chosen ? 0 : 20));
      document->loss_mask.assign(document->tokens.size(), 1);
      std::fill_n(document->loss_mask.begin(), prompt.size(), uint8_t{0});
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

/// One sequence alone, nothing packed: its score, or the log-prob of its answer, in float64.
Tensor plain_value(const Decoder& decoder, const Document& document, bool is_reward) {
  const auto length = static_cast<int32_t>(document.tokens.size());
  const auto logits =
      decoder.logits(decoder.forward(at::tensor(document.tokens, at::kLong), {{{0, length, -1}}, length}));
  if (is_reward) return logits[length - 1][0];
  const auto log_p = at::log_softmax(logits, 1);
  auto sum = at::zeros({}, at::kDouble);
  for (int32_t i = 1; i < length; ++i)
    if (document.loss_mask[static_cast<size_t>(i)] != 0)
      sum = sum + log_p[i - 1][document.tokens[static_cast<size_t>(i)]];
  return sum;
}

struct Plain {
  double loss = 0, accuracy = 0;
  TensorMap gradients;
};

Plain plain_step(const ModelConfig& config, const TensorMap& weights, const TensorMap& reference_weights,
                 const std::vector<PreferencePair>& pairs, const PreferenceOptions& options) {
  const bool is_reward = options.loss == "bradley-terry";
  TensorMap leaves, frozen;
  for (const auto& [name, weight] : weights) leaves[name] = weight.to(at::kDouble).clone().requires_grad_();
  for (const auto& [name, weight] : reference_weights) frozen[name] = weight.to(at::kDouble);
  Decoder decoder(config), reference(config);
  decoder.bind_all(leaves);
  reference.bind_all(frozen);
  auto total = at::zeros({}, at::kDouble);
  Plain plain;
  for (const auto& pair : pairs) {
    const auto chosen = plain_value(decoder, pair.chosen, is_reward);
    const auto rejected = plain_value(decoder, pair.rejected, is_reward);
    Tensor loss, difference;
    if (is_reward) {
      difference = chosen - rejected;
      loss = (1 + (-(difference - pair.margin)).exp()).log() + options.center * (chosen + rejected).square();
    } else {
      difference = chosen - rejected -
                   (plain_value(reference, pair.chosen, false) - plain_value(reference, pair.rejected, false)).detach();
      const auto right = (1 + (-options.beta * difference).exp()).log();
      const auto wrong = (1 + (options.beta * difference).exp()).log();
      loss = options.loss == "dpo" ? (1 - options.label_smoothing) * right + options.label_smoothing * wrong
                                   : (difference - 1 / (2 * options.beta)).square();
    }
    total = total + loss / static_cast<double>(pairs.size());
    plain.accuracy += (difference.item<double>() > 0) / static_cast<double>(pairs.size());
  }
  total.backward();
  plain.loss = total.item<double>();
  for (const auto& [name, leaf] : leaves) plain.gradients[name] = leaf.grad().to(at::kFloat);
  return plain;
}

/// The learner's step has the plain step's loss, accuracy and gradient, packed, in small rows, and on any ranks.
void check_against_plain(const ModelConfig& config, const PreferenceOptions& preference) {
  const auto weights = learner_weights(config, 1), other = learner_weights(config, 2);
  const auto pairs = learner_pairs(9);
  const auto plain = plain_step(config, weights, other, pairs, preference);
  auto options = learner_options();
  options.preference = preference;
  for (const int num_ranks : {1, 2, 3})
    for (const int64_t row : {12, 4096}) {
      CAPTURE(num_ranks);
      CAPTURE(row);
      options.num_tokens_per_microbatch = row;
      with_ranks(num_ranks, config, options, other, [&](Learner& learner, int rank) {
        if (preference.loss != "bradley-terry") learner.set_preference_reference(learner.preference_log_probs(pairs));
        learner.load([&](const std::string& name) { return weights.at(name); });
        const auto held = learner.evaluate_preference(pairs);
        const auto metrics = learner.train_preference(pairs);
        const auto gradients = learner.model().gather_gradients();
        if (rank != 0) return;
        CHECK(metrics.at("loss/mean") == doctest::Approx(plain.loss).epsilon(1e-5));
        CHECK(metrics.at("preference/accuracy") == doctest::Approx(plain.accuracy));
        CHECK(metrics.at("preference/num_pairs") == 9);
        CHECK(held.at("validation/loss") == doctest::Approx(plain.loss).epsilon(1e-5));
        CHECK(held.at("validation/accuracy") == doctest::Approx(plain.accuracy));
        CHECK(relative_difference(gradients, plain.gradients) < 2e-5);
      });
    }
}

}  // namespace

TEST_CASE("a reward model's step equals plain autograd") {
  PreferenceOptions options;
  options.center = 0.01;
  check_against_plain(reward_config(), options);
}

TEST_CASE("DPO and IPO equal plain autograd") {
  PreferenceOptions options;
  options.loss = "dpo";
  options.label_smoothing = 0.1;
  check_against_plain(learner_config(), options);
  options.loss = "ipo";
  options.label_smoothing = 0;
  check_against_plain(learner_config(), options);
}

TEST_CASE("B021 B035 scores are those of transformers at each sequence's last real token") {
  const std::filesystem::path folder = TROUPE_SOURCE_DIR "/tests/fixtures/models/llama-reward";
  const auto reader = open_checkpoint(folder);
  const auto weights = load_weights(*reader, at::kFloat);
  const SafetensorsFile expected(folder / "expected.safetensors");
  const auto ids = expected.tensor("input_ids").to(at::kInt).contiguous();
  const auto lengths = expected.tensor("lengths"), scores = expected.tensor("scores");
  const auto document = [&](int64_t row) {
    const auto* begin = ids[row].const_data_ptr<int32_t>();
    Document result{{begin, begin + lengths[row].item<int64_t>()}, {}};
    result.loss_mask.assign(result.tokens.size(), 1);
    result.loss_mask[0] = 0;
    return result;
  };
  auto config = reader->config();
  with_one_rank(config, learner_options(), weights, [&](Learner& learner) {
    for (int64_t row = 0; row < 3; ++row) {
      // Each against itself with another ending: the chosen score is the sequence's own.
      PreferencePair pair{2, document(row), document(row), 0};
      pair.rejected.tokens.push_back(3);
      pair.rejected.loss_mask.push_back(1);
      const auto metrics = learner.evaluate_preference({pair});
      CHECK(metrics.at("validation/reward_chosen") == doctest::Approx(scores[row].item<double>()).epsilon(1e-4));
    }
  });
}

TEST_CASE("a reward model and a policy learn which half of the vocabulary is preferred") {
  const auto pairs = learner_pairs(64);
  for (const char* loss : {"bradley-terry", "dpo", "ipo"}) {
    CAPTURE(loss);
    auto options = learner_options();
    options.optimizer.lr = 2e-3;
    options.max_norm = 1;
    options.preference.loss = loss;
    const bool is_reward = options.preference.loss == "bradley-terry";
    const auto config = is_reward ? reward_config() : learner_config();
    with_one_rank(config, options, learner_weights(config, 1, 0.05), [&](Learner& learner) {
      if (!is_reward) learner.set_preference_reference(learner.preference_log_probs(pairs));
      const std::vector<PreferencePair> train(pairs.begin(), pairs.begin() + 48), held(pairs.begin() + 48, pairs.end());
      if (!is_reward) CHECK(std::abs(learner.evaluate_preference(held).at("validation/margin")) < 1e-5);
      for (int step = 0; step < 30; ++step) learner.train_preference(train);
      const auto after = learner.evaluate_preference(held);
      CHECK(after.at("validation/accuracy") > 0.9);
      CHECK(after.at("validation/margin") > 0.2);  // IPO stops at beta / (2 beta) = 0.5
    });
  }
}

TEST_CASE("what a preference step lacks is named") {
  auto options = learner_options();
  const auto pairs = learner_pairs(2);
  const auto config = learner_config();
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    CHECK_THROWS_WITH_AS(learner.train_preference(pairs),
                         "preference.loss = \"bradley-terry\" needs a model with one score", Error);
  });
  options.preference.loss = "dpo";
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    CHECK_THROWS_WITH_AS(learner.train_preference({pairs[0]}), "pair 100 has no log-probs of the reference", Error);
  });
  options.preference.label_smoothing = 0.5;
  CHECK_THROWS_AS(check_preference(options.preference), UsageError);
}

}  // namespace troupe
