// Advantages against small cases whose values follow by hand.
#include "training/advantages.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

using Rewards = std::vector<std::optional<double>>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void check_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}

}  // namespace

TEST_CASE("B007 a leave-one-out std that is only a residue of rounding never divides") {
  Rewards rewards(8, 0.35);
  rewards[7] = 0.0;
  const std::vector<uint64_t> groups(8, 0);
  for (const auto std : {AdvantageStd::kSample, AdvantageStd::kPopulation}) {
    const auto result = group_advantages(rewards, groups, GroupBaseline::kLeaveOneOut, std);
    CHECK(result.advantage[7] == doctest::Approx(-0.35));
    for (double advantage : result.advantage) CHECK(std::abs(advantage) < 5);
  }
}

TEST_CASE("B012 an outcome reward reaches the tokens before a tool observation") {
  const std::vector<uint8_t> mask = {1, 0, 0, 1, 1};
  const auto rewards = token_rewards(mask, 4, {}, 0);
  check_near(discounted_returns(mask, rewards, 0.5), {1, 0, 0, 2, 4});
  const std::vector<uint8_t> without = {1, 1, 1};
  check_near(discounted_returns(without, token_rewards(without, 4, {}, 0), 0.5), {1, 2, 4});
}

TEST_CASE("B013 the reward sits on the last trainable token and masked values stay out of GAE") {
  const std::vector<uint8_t> mask = {1, 1, 0, 0};
  const std::vector<double> values = {0.5, 0.5, 9, 9};
  const auto gae = generalized_advantages(mask, token_rewards(mask, 1, {}, 0), values, 0.9, 0.8);
  check_near(gae.advantage, {0.31, 0.5, 0, 0});
}

TEST_CASE("B014 a critic's output on padding changes nothing") {
  const std::vector<uint8_t> mask = {1, 1, 0};
  for (double padding : {40.0, kNan}) {
    const auto gae =
        generalized_advantages(mask, std::vector<double>{0, 2, 0}, std::vector<double>{0.5, 1, padding}, 1, 0.5);
    check_near(gae.advantage, {1, 1, 0});
    check_near(gae.returns, {1.5, 2, 0});
  }
}

TEST_CASE("B015 the KL penalty of tool tokens is not charged") {
  const std::vector<uint8_t> mask = {1, 0, 1};
  const auto rewards = token_rewards(mask, 0, std::vector<double>{0.5, 0.5, 0.5}, 2);
  check_near(discounted_returns(mask, rewards, 1), {-2, 0, -1});
}

TEST_CASE("B016 whitening over slices of one sequence equals whitening of the whole") {
  std::vector<double> left = {1, 2}, right = {10, 11}, none;
  const std::vector<uint8_t> mask = {1, 1}, empty;
  Moments moments = masked_moments(mask, left);
  moments.merge(masked_moments(empty, none));
  moments.merge(masked_moments(mask, right));
  CHECK(moments.mean == doctest::Approx(6));
  whiten(mask, left, moments);
  whiten(empty, none, moments);
  whiten(mask, right, moments);
  check_near(left, {-1.104315, -0.883452});
  check_near(right, {0.883452, 1.104315});
}

TEST_CASE("B125 a failed reward is left out and counted, and nothing becomes NaN") {
  const Rewards rewards = {1.0, std::nullopt, 0.0, 1.0, kNan};
  const std::vector<uint64_t> groups(5, 2);
  const auto result = group_advantages(rewards, groups, GroupBaseline::kGroupMean, AdvantageStd::kSample);
  CHECK(result.num_failed_rewards == 2);
  CHECK(result.live == std::vector<uint8_t>{1, 0, 1, 1, 0});
  const double std = std::sqrt(1.0 / 3) + 1e-6;
  check_near(result.advantage, {1 / (3 * std), 0, -2 / (3 * std), 1 / (3 * std), 0});
}

TEST_CASE("B149 a group of one has no advantage and takes no part") {
  const auto result =
      group_advantages(Rewards{3.0}, std::vector<uint64_t>{1}, GroupBaseline::kGroupMean, AdvantageStd::kSample);
  CHECK(result.advantage == std::vector<double>{0});
  CHECK(result.live == std::vector<uint8_t>{0});
  CHECK(result.num_zero_variance_groups == 1);
}

TEST_CASE("over-long answers are punished softly") {
  CHECK(overlong_penalty(80, 100, 20) == 0);
  CHECK(overlong_penalty(85, 100, 20) == doctest::Approx(-0.25));
  CHECK(overlong_penalty(100, 100, 20) == -1);
  CHECK(overlong_penalty(140, 100, 20) == -1);
  CHECK(overlong_penalty(100, 100, 0) == 0);  // no buffer: nothing below the limit is too long
  CHECK(overlong_penalty(101, 100, 0) == -1);
}

TEST_CASE("an unknown std names the known ones") {
  CHECK_THROWS_WITH_AS(parse_advantage_std("var"),
                       R"(algorithm.advantage_std = "var" is unknown; known: "sample", "population", "none")",
                       UsageError);
}

}  // namespace troupe
