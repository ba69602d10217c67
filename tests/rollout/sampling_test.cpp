// The draw of one token against a plain reference in float64 that sorts the whole vocabulary, on every kernel table of
// this processor: filters, ties, edges, bad numbers, and the random number itself.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/philox.h"
#include "models/kernels/decode_sampling.h"
#include "rollout/engine.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

const double kLargestUniform = 1 - 0x1.0p-32;

struct Reference {
  std::vector<double> mass;  // by id, relative to the best; 0 where a filter dropped it
  std::vector<double> log_probs;
  double rounding = 0;  // of logits / temperature in fp32
};

double exponential(float logit, float largest, float temperature) {
  return std::exp((static_cast<double>(logit) - largest) / temperature);
}

/// None where rounding may decide what a filter keeps: the definition speaks of exact shares.
std::optional<Reference> reference(const std::vector<float>& logits, const SamplingRule& rule) {
  const float temperature = rule.temperature > 0 ? rule.temperature : 1;
  const float largest = *std::max_element(logits.begin(), logits.end());
  Reference result;
  result.rounding = 0x1.0p-23 * std::abs(static_cast<double>(largest) / temperature);
  double total = 0;
  for (const float logit : logits) total += exponential(logit, largest, temperature);
  for (const float logit : logits) {
    result.log_probs.push_back((static_cast<double>(logit) - largest) / temperature - std::log(total));
  }
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const size_t size = sorted.size();
  float threshold = -std::numeric_limits<float>::infinity();
  if (rule.top_k > 0) threshold = sorted[std::min<size_t>(size, static_cast<size_t>(rule.top_k)) - 1];
  if (rule.top_p < 1) {
    double kept = 0, running = 0;
    for (const float logit : sorted) kept += logit >= threshold ? exponential(logit, largest, temperature) : 0;
    size_t i = 0;
    for (; i < size && sorted[i] >= threshold; ++i) {
      running += exponential(sorted[i], largest, temperature);
      if (rule.top_p > 0 && std::abs(running - rule.top_p * kept) < 1e-5 * kept) return std::nullopt;
      if (running >= rule.top_p * kept) break;
    }
    threshold = sorted[std::min(i, size - 1)];
  }
  for (const float logit : logits) {
    const double mass = exponential(logit, largest, temperature);
    if (logit != largest && std::abs(mass - rule.min_p) < 1e-5) return std::nullopt;
    result.mass.push_back(logit >= threshold && mass >= rule.min_p ? mass : 0);
  }
  if (rule.temperature <= 0) {
    result.mass.assign(size, 0);
    result.mass[std::find(logits.begin(), logits.end(), largest) - logits.begin()] = 1;
  }
  return result;
}

/// The drawn id is kept, and its part of the running sum in id order holds uniform * mass.
void check_draw(const Reference& expected, const SampledToken& drawn, double uniform) {
  REQUIRE(drawn.id >= 0);
  REQUIRE(drawn.id < static_cast<int32_t>(expected.mass.size()));
  double before = 0, total = 0;
  for (size_t i = 0; i < expected.mass.size(); ++i) {
    if (static_cast<int32_t>(i) < drawn.id) before += expected.mass[i];
    total += expected.mass[i];
  }
  const double mass = expected.mass[drawn.id], tolerance = (3e-6 + expected.rounding) * total;
  REQUIRE(mass > 0);
  REQUIRE(before - tolerance <= uniform * total);
  REQUIRE(uniform * total < before + mass + tolerance);
  REQUIRE(std::abs(drawn.log_prob - expected.log_probs[drawn.id]) <
          4e-6 * (1 + std::abs(drawn.log_prob)) + expected.rounding);
}

SampledToken draw(const DecodeKernels& kernels, const std::vector<float>& logits, const SamplingRule& rule,
                  double uniform) {
  SamplingScratch scratch;
  return sample_token(kernels, logits.data(), static_cast<int64_t>(logits.size()), rule, uniform, scratch);
}

TEST_CASE("a draw is the inverse cumulative sum in id order over what the filters keep") {
  const std::vector<int32_t> sizes = {1, 2, 3, 17, 255, 256, 257, 600, 1500};
  const std::vector<float> temperatures = {0, 0.3f, 0.7f, 1, 1.7f, 40};
  const std::vector<float> top_ps = {1, 1, 0.999f, 0.9f, 0.5f, 1e-6f, 0};
  const std::vector<int32_t> top_ks = {0, 0, 1, 2, 5, 40, 1500, 1 << 30};
  const std::vector<float> min_ps = {0, 0, 0.02f, 0.5f, 1};
  const std::vector<double> uniforms = {0, 0.1, 0.5, 0.93, kLargestUniform};
  int64_t num_checked = 0;
  for (uint32_t trial = 0; trial < 1500; ++trial) {
    uint32_t index = 0;
    const auto pick = [&](const auto& from) {
      return from[random_words(1, trial, ++index, RandomStream::kDataOrder)[0] % from.size()];
    };
    std::vector<float> logits(pick(sizes));
    const float scale = pick(std::vector<float>{0.1f, 2, 12}), grid = pick(std::vector<float>{0, 0.5f, 2});
    for (float& logit : logits) {
      const double u = random_uniform(2, trial, ++index, RandomStream::kDataOrder);
      logit = scale * static_cast<float>(std::log((u + 1e-9) / (1 - u + 1e-9)));
      if (grid > 0) logit = std::round(logit / grid) * grid;  // many ties
    }
    const SamplingRule rule{pick(temperatures), pick(top_ps), pick(top_ks), pick(min_ps)};
    const double uniform = pick(uniforms);
    const auto expected = reference(logits, rule);
    if (!expected) continue;
    ++num_checked;
    for (const DecodeKernels* kernels : runnable_decode_kernels()) {
      CAPTURE(std::string(kernels->name));
      CAPTURE(trial);
      CAPTURE(rule.temperature);
      CAPTURE(rule.top_p);
      CAPTURE(rule.top_k);
      CAPTURE(rule.min_p);
      CAPTURE(logits.size());
      CAPTURE(uniform);
      check_draw(*expected, draw(*kernels, logits, rule, uniform), uniform);
    }
  }
  CHECK(num_checked > 1200);
}

TEST_CASE("ties stay together, the best one is never dropped, filters that cannot bite change nothing") {
  for (const DecodeKernels* kernels : runnable_decode_kernels()) {
    CAPTURE(std::string(kernels->name));
    const std::vector<float> tied = {1, 3, 3, 0, 3, 2};
    const auto drawn_ids = [&](const SamplingRule& rule) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 400; ++i) {
        const int32_t id = draw(*kernels, tied, rule, (i + 0.5) / 400).id;
        if (ids.empty() || ids.back() != id) ids.push_back(id);  // ascending: the sum runs in id order
      }
      return ids;
    };
    const std::vector<int32_t> best = {1, 2, 4}, all = {0, 1, 2, 3, 4, 5};
    CHECK(drawn_ids({1, 1, 1, 0}) == best);  // top-k 1 keeps what ties with the first
    CHECK(drawn_ids({1, 0, 0, 0}) == best);  // top-p 0 keeps the best
    CHECK(drawn_ids({1, 1e-7f, 0, 0}) == best);
    CHECK(drawn_ids({0.7f, 1, 0, 1}) == best);  // min-p 1 as well, at a temperature that rounds
    CHECK(drawn_ids({0.3f, 1, 0, 1}) == best);
    CHECK(drawn_ids({1.3f, 0.4f, 3, 1}) == best);
    CHECK(drawn_ids({1, 1, 4, 0}) == std::vector<int32_t>{1, 2, 4, 5});
    CHECK(drawn_ids({1, 1, 0, 0}) == all);
    CHECK(drawn_ids({1, 1, 6, 0}) == all);
    CHECK(drawn_ids({1, 1, 100, 0}) == all);                    // top-k above the vocabulary
    CHECK(drawn_ids({0, 1, 0, 0}) == std::vector<int32_t>{1});  // greedy: the lowest of tied ids
    CHECK(drawn_ids({0, 0.1f, 3, 1}) == std::vector<int32_t>{1});
  }
}

TEST_CASE("min-p 1 keeps the best id alone, whatever the rounding of its own exponential") {
  for (const DecodeKernels* kernels : runnable_decode_kernels()) {
    CAPTURE(std::string(kernels->name));
    for (int i = 1; i < 200; ++i) {
      const float largest = 0.37f * static_cast<float>(i);
      const std::vector<float> logits = {largest - 0.05f, largest - 3, largest, largest - 0.01f};
      CHECK(draw(*kernels, logits, {0.7f + 0.01f * static_cast<float>(i), 1, 0, 1}, 0.4).id == 2);
    }
  }
}

TEST_CASE("B030 B031 log-probs are those of logits / temperature over the whole vocabulary, whatever is filtered") {
  for (const DecodeKernels* kernels : runnable_decode_kernels()) {
    CHECK(draw(*kernels, {2, 1, 0}, {0.5f, 1, 0, 0}, 0).log_prob == doctest::Approx(-0.142932).epsilon(1e-5));
    const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
    for (const SamplingRule& rule : {SamplingRule{1, 0.8f, 0, 0}, {1, 1, 1, 0}, {1, 1, 0, 0.9f}, {1, 1, 0, 0}}) {
      const SampledToken drawn = draw(*kernels, logits, rule, 0);
      CHECK(drawn.id == 0);
      CHECK(drawn.log_prob == doctest::Approx(-0.693147).epsilon(1e-5));
    }
    // Only the filter of two keeps id 1 from a uniform that would fall on id 2.
    CHECK(draw(*kernels, logits, {1, 0.79f, 0, 0}, 0.9).id == 1);
    CHECK(draw(*kernels, logits, {1, 1, 0, 0}, 0.9).id == 2);
  }
}

TEST_CASE("logits that are not finite are refused in every lane; minus infinity alone is a token that cannot come") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DecodeKernels* kernels : runnable_decode_kernels()) {
    CAPTURE(std::string(kernels->name));
    for (const size_t size : {1, 5, 16, 37, 300}) {
      for (size_t lane = 0; lane<size; lane += size> 100 ? 7 : 1) {
        for (const float bad : {std::nanf(""), infinity}) {
          std::vector<float> logits(size, 0.5f);
          logits[lane] = bad;
          for (const SamplingRule& rule : {SamplingRule{1, 1, 0, 0}, {0, 1, 0, 0}, {1, 0.9f, 5, 0.1f}}) {
            CHECK(draw(*kernels, logits, rule, 0.5).id == -1);
          }
        }
        if (size == 1) continue;
        std::vector<float> logits(size, 0.5f);
        logits[lane] = -infinity;
        for (const double uniform : {0.0, 0.5, kLargestUniform}) {
          for (const SamplingRule& rule : {SamplingRule{1, 1, 0, 0}, {1, 0.99f, 0, 0}, {0.5f, 1, 1 << 20, 0.1f}}) {
            const SampledToken drawn = draw(*kernels, logits, rule, uniform);
            CHECK(drawn.id >= 0);
            CHECK(drawn.id != static_cast<int32_t>(lane));
          }
        }
      }
      CHECK(draw(*kernels, std::vector<float>(size, -infinity), {1, 1, 0, 0}, 0.5).id == -1);
    }
  }
}

TEST_CASE("the protocol's counter: (sample id low, high, token index, stream), key = seed, one word a token") {
  // The published vector of Philox-4x32-10 whose counter and key are digits of pi.
  const auto words = random_words(uint64_t{0x299f31d0} << 32 | 0xa4093822, uint64_t{0x85a308d3} << 32 | 0x243f6a88,
                                  0x13198a2e, static_cast<RandomStream>(0x03707344));
  CHECK((words == std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
  CHECK(random_uniform(0, 0, 0, RandomStream::kSampling) == 0x6627e8d5u * 0x1.0p-32);
  const double base = random_uniform(7, 1, 2, RandomStream::kSampling);
  CHECK(base != random_uniform(7 + (uint64_t{1} << 32), 1, 2, RandomStream::kSampling));
  CHECK(base != random_uniform(7, 1 + (uint64_t{1} << 32), 2, RandomStream::kSampling));
  CHECK(base != random_uniform(7, 1, 3, RandomStream::kSampling));
  CHECK(base != random_uniform(7, 1, 2, RandomStream::kDropout));
}

TEST_CASE("frequencies of draws follow the distribution") {
  const std::vector<float> logits = {0, 1, -1, 2};
  const Reference expected = reference(logits, {1, 1, 0, 0}).value();
  std::vector<int> counts(4);
  const int num_draws = 20000;
  for (int i = 0; i < num_draws; ++i) {
    const double uniform = random_uniform(3, static_cast<uint64_t>(i), 5, RandomStream::kSampling);
    ++counts[draw(decode_kernels(), logits, {1, 1, 0, 0}, uniform).id];
  }
  for (size_t id = 0; id < 4; ++id) {
    const double probability = std::exp(expected.log_probs[id]);
    const double deviation = std::sqrt(num_draws * probability * (1 - probability));
    CHECK(std::abs(counts[id] - num_draws * probability) < 4 * deviation);
  }
}

TEST_CASE("settings out of range are refused by name") {
  const auto refused = [](auto change, const char* name) {
    SamplingOptions sampling;
    change(sampling);
    CHECK_THROWS_WITH_AS(check_sampling_options(sampling), doctest::Contains(name), Error);
  };
  refused([](auto& s) { s.temperature = -0.1; }, "temperature");
  refused([](auto& s) { s.temperature = 1e-6; }, "temperature");
  refused([](auto& s) { s.temperature = std::nan(""); }, "temperature");
  refused([](auto& s) { s.top_p = 0; }, "top_p");
  refused([](auto& s) { s.top_p = 1.01; }, "top_p");
  refused([](auto& s) { s.top_p = std::nan(""); }, "top_p");
  refused([](auto& s) { s.top_k = -1; }, "top_k");
  refused([](auto& s) { s.min_p = 1.1; }, "min_p");
  refused([](auto& s) { s.min_p = std::nan(""); }, "min_p");
  refused([](auto& s) { s.max_new_tokens = 0; }, "max_new_tokens");
  refused([](auto& s) { s.stop = {"a", ""}; }, "stop");
  SamplingOptions edges;
  edges.temperature = 0;
  edges.min_p = 1;
  edges.top_k = 1 << 30;
  CHECK_NOTHROW(check_sampling_options(edges));
}

}  // namespace
}  // namespace troupe
