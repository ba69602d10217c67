// Reward kind "model" against transformers' scores.
#include "rollout/model_reward.h"

#include "base/error.h"
#include "models/formats/safetensors.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

const std::string kFolder = TROUPE_SOURCE_DIR "/tests/fixtures/models/llama-reward";

RewardOptions options(nlohmann::json settings) {
  RewardOptions result;
  result.kind = result.name = "model";
  result.settings = std::move(settings);
  return result;
}

}  // namespace

TEST_CASE("B035 a reward model scores each sample at its last real token, as transformers does") {
  const SafetensorsFile expected(std::filesystem::path(kFolder) / "expected.safetensors");
  const auto ids = expected.tensor("input_ids").to(at::kInt).contiguous();
  const auto lengths = expected.tensor("lengths"), scores = expected.tensor("scores");
  RewardSet rules({options({{"path", kFolder}})});
  const auto scaled = make_reward_function(options({{"path", kFolder}, {"scale", 2.0}, {"offset", 1.0}}));
  for (int64_t row = 0; row < lengths.numel(); ++row) {
    Trajectory sample;
    const auto* begin = ids[row].const_data_ptr<int32_t>();
    sample.tokens.assign(begin, begin + lengths[row].item<int64_t>());
    rules.score(sample);
    REQUIRE(sample.total_reward.has_value());
    const double score = scores[row].item<double>();
    CHECK(*sample.total_reward == doctest::Approx(score).epsilon(1e-4));
    CHECK(scaled->score(sample, {}) == doctest::Approx(2 * score + 1).epsilon(1e-4));
  }
  Trajectory foreign;
  foreign.tokens = {1, 1 << 20};
  rules.score(foreign);
  CHECK_FALSE(foreign.total_reward.has_value());  // a reason, never a silent 0
  CHECK(foreign.rewards.at(0).failure.find("vocabulary") != std::string::npos);
}

TEST_CASE("what is no reward model is refused before anything runs") {
  CHECK_THROWS_AS(make_reward_function(options(nlohmann::json::object())), UsageError);
  CHECK_THROWS_AS(make_reward_function(options({{"path", 3}})), UsageError);
  CHECK_THROWS_AS(make_reward_function(options({{"path", kFolder}, {"colour", 1}})), UsageError);
  CHECK_THROWS_AS(make_reward_function(options({{"path", TROUPE_SOURCE_DIR "/tests/fixtures/models/llama"}})),
                  UsageError);
  CHECK_THROWS_AS(make_reward_function(options({{"path", "/nowhere"}})), Error);
}

TEST_CASE("a model of a rule that runs elsewhere is not looked for here; its settings are") {
  auto elsewhere = options({{"path", "/nowhere"}});
  elsewhere.is_elsewhere = true;
  const auto rule = make_reward_function(elsewhere);
  CHECK_THROWS_AS(rule->load(), Error);
  Trajectory sample;
  sample.tokens = {1};
  CHECK_THROWS_AS(rule->score(sample, {}), Error);
  CHECK(longest_score_s({elsewhere}) == elsewhere.timeout_s);
  CHECK(num_parallel_scores({elsewhere}) == 1);
  elsewhere.settings = {{"path", ""}};
  CHECK_THROWS_AS(make_reward_function(elsewhere), UsageError);
}

}  // namespace troupe
