// The table test of ops::sample, for the same implementations as ops_test.cpp: log-probs against float64, and ids
// against the definition in ops.h (filters as thresholds, inverse cumulative sum in id order with one Philox uniform).
#include "base/error.h"
#include "base/philox.h"
#include "tests/doctest.h"
#include "tests/models/implementations.h"

namespace troupe {
namespace {

using testing::implementations;

struct SampleCase {
  float temperature, top_p;
  int32_t top_k;
  float min_p;
};
const std::vector<SampleCase> kCases = {{1, 1, 0, 0},      {0, 1, 0, 0},    {0.5, 1, 0, 0},  {1.7, 1, 5, 0},
                                        {1, 0.9, 0, 0},    {1, 1, 0, 0.05}, {1, 0.5, 40, 0}, {0.8, 0.95, 20, 0.1},
                                        {1, 1, 1, 0},      {1, 0.01, 0, 0}, {1, 1, 0, 1},    {2, 0.99, 0, 0.2},
                                        {1, 1, 100000, 0}, {0, 0.5, 3, 0.5}};

struct Inputs {
  Tensor logits, temperature, top_p, top_k, min_p, sample_ids, token_indices;
  int64_t vocab_size;

  Inputs(int64_t vocab, int64_t columns, at::ScalarType dtype) : vocab_size(vocab) {
    at::manual_seed(vocab);
    const auto rows = std::ssize(kCases);
    // Coarse values make ties, as bf16 logits do; the columns past the vocabulary would win if they were looked at.
    logits = (at::randn({rows, columns}) * 3 * 8).round().div(8).to(dtype);
    if (columns > vocab) logits.narrow(1, vocab, columns - vocab).fill_(100);
    temperature = at::empty({rows}), top_p = at::empty({rows}), min_p = at::empty({rows});
    top_k = at::empty({rows}, at::kInt), token_indices = at::arange(rows, at::kInt) * 1000003;
    sample_ids = at::arange(rows, at::kLong) * -4567890123456789;  // bits of large uint64 values
    for (int64_t i = 0; i < rows; ++i) {
      temperature[i] = kCases[i].temperature, top_p[i] = kCases[i].top_p;
      top_k[i] = kCases[i].top_k, min_p[i] = kCases[i].min_p;
    }
  }
  std::pair<Tensor, Tensor> run(const testing::Implementation& implementation, uint64_t seed) const {
    const auto to = [&](const Tensor& tensor) { return tensor.to(implementation.device); };
    const auto [ids, log_probs] =
        implementation.functions.sample_function(to(logits), vocab_size, to(temperature), to(top_p), to(top_k),
                                                 to(min_p), to(sample_ids), to(token_indices), {seed});
    return {ids.cpu(), log_probs.cpu()};
  }
};

/// What the definition allows for one row, in float64: weight of every id (0 where filtered), relative to the best.
Tensor expected_weights(const Tensor& scaled, const SampleCase& c) {
  const Tensor weights = (scaled - scaled.max()).exp(), sorted = std::get<0>(weights.sort(0, true));
  double threshold = c.min_p;
  if (c.top_k > 0 && c.top_k < weights.numel()) {
    threshold = std::max(threshold, sorted[c.top_k - 1].item<double>());
  }
  if (c.top_p < 1) {
    const double kth = c.top_k > 0 && c.top_k < weights.numel() ? sorted[c.top_k - 1].item<double>() : 0;
    const Tensor left = sorted.masked_select(sorted >= kth), sums = left.cumsum(0);
    const int64_t reached = (sums < c.top_p * sums[-1].item<double>()).sum().item<int64_t>();
    threshold = std::max(threshold, left[std::min(reached, left.numel() - 1)].item<double>());
  }
  return weights * (weights >= threshold * (1 - 1e-9));
}

}  // namespace

TEST_CASE("ops table: sample") {
  for (const auto& implementation : implementations()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto& [vocab, columns] : {std::pair<int64_t, int64_t>{1, 1}, {50, 64}, {1500, 1500}, {49152, 49160}}) {
        CAPTURE(implementation.name);
        CAPTURE(at::toString(dtype));
        CAPTURE(vocab);
        const Inputs in(vocab, columns, dtype);
        for (const uint64_t seed : {uint64_t{7}, uint64_t{0xFEDCBA9876543210}}) {
          const auto [ids, log_probs] = in.run(implementation, seed);
          for (int64_t i = 0; i < ids.numel(); ++i) {
            const SampleCase& c = kCases[i];
            CAPTURE(i);
            const bool greedy = c.temperature == 0;
            const Tensor scaled =
                (in.logits[i].narrow(0, 0, vocab).to(at::kFloat) / (greedy ? 1 : c.temperature)).to(at::kDouble);
            const int64_t id = ids[i].item<int64_t>();
            REQUIRE(id >= 0);
            REQUIRE(id < vocab);
            CHECK(std::abs(log_probs[i].item<double>() - at::log_softmax(scaled, 0)[id].item<double>()) < 2e-5);
            if (greedy) {
              CHECK((scaled.narrow(0, 0, id) < scaled.max()).all().item<bool>());
              CHECK(scaled[id].item<double>() == scaled.max().item<double>());
              continue;
            }
            // The id whose span of the cumulative sum holds u, give or take the rounding of fp32 exponentials.
            const Tensor weights = expected_weights(scaled, c);
            const double total = weights.sum().item<double>();
            const double begin = weights.narrow(0, 0, id).sum().item<double>() / total;
            const double end = begin + weights[id].item<double>() / total;
            const double u =
                random_uniform(seed, static_cast<uint64_t>(in.sample_ids[i].item<int64_t>()),
                               static_cast<uint32_t>(in.token_indices[i].item<int32_t>()), RandomStream::kSampling);
            CHECK(weights[id].item<double>() > 0);
            CHECK(begin <= u + 2e-6);
            CHECK(u <= end + 2e-6);
          }
        }
      }
    }
  }
}

TEST_CASE("ops table: a row of logits that is not finite is an error on the CPU and the id -1 on CUDA") {
  for (const auto& implementation : implementations()) {
    CAPTURE(implementation.name);
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      Inputs in(50, 50, at::kFloat);
      in.logits[0][17] = bad;
      in.logits[1][17] = bad;  // greedy
      if (implementation.name == "CPU") {
        CHECK_THROWS_AS(in.run(implementation, 1), Error);
        continue;
      }
      const auto [ids, log_probs] = in.run(implementation, 1);
      CHECK(ids[0].item<int64_t>() == -1);
      CHECK(ids[1].item<int64_t>() == -1);
      CHECK(std::isnan(log_probs[0].item<float>()));
      CHECK(ids[2].item<int64_t>() >= 0);
    }
  }
}

TEST_CASE("ops table: all implementations draw the same ids from the same numbers") {
  const Inputs in(49152, 49152, at::kFloat);
  const auto all = implementations();
  const auto [wanted, log_probs_wanted] = in.run(all.front(), 99);
  for (const auto& implementation : all) {
    CAPTURE(implementation.name);
    const auto [ids, log_probs] = in.run(implementation, 99);
    CHECK(at::equal(ids, wanted));
    CHECK((log_probs - log_probs_wanted).abs().max().item<float>() < 2e-5f);
  }
}

}  // namespace troupe
