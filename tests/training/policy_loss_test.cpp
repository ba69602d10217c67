// Policy losses, their aggregation over micro-batches and ranks, and KL: small cases whose values follow by hand.
#include "training/policy_loss.h"

#include "base/error.h"
#include "training/aggregation.h"
#include "training/kl.h"
#include "training/preference_loss.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

/// Sum of weight * token loss of one micro-batch whose sequences have the given token losses.
double aggregate(Aggregation mode, const LossCounts& counts, const std::vector<std::vector<double>>& sequences,
                 double constant = 0) {
  double sum = 0;
  for (const auto& losses : sequences)
    for (double loss : losses) sum += loss * token_weight(mode, counts, static_cast<int64_t>(losses.size()), constant);
  return sum;
}

}  // namespace

TEST_CASE("B001 B002 micro-batches and ranks divide by the global count of tokens") {
  const LossCounts counts{8, 2, 2};
  const double loss = aggregate(Aggregation::kTokenMean, counts, {std::vector<double>(6, 1.0)}) +
                      aggregate(Aggregation::kTokenMean, counts, {std::vector<double>(2, 4.0)});
  CHECK(loss == doctest::Approx(1.75));
  const LossCounts ranks{5, 2, 2};
  CHECK(aggregate(Aggregation::kTokenMean, ranks, {{1, 1, 1, 1}}) + aggregate(Aggregation::kTokenMean, ranks, {{6}}) ==
        doctest::Approx(2.0));
}

TEST_CASE("B005 the denominator counts what is left after masking, and nothing left gives 0") {
  CHECK(aggregate(Aggregation::kTokenMean, {9, 2, 2}, {std::vector<double>(9, 2.0)}) == doctest::Approx(2.0));
  for (const auto mode : {Aggregation::kTokenMean, Aggregation::kSequenceMean, Aggregation::kConstant})
    CHECK(token_weight(mode, {0, 0, 0}, 0, 4) == 0);
}

TEST_CASE("B006 the loss at ratio 1 depends on the aggregation, for the KL term as well") {
  const LossCounts counts{4, 2, 2};
  const std::vector<std::vector<double>> losses = {{-1}, {1, 1, 1}};  // -A at ratio 1
  CHECK(aggregate(Aggregation::kSequenceMean, counts, losses) == doctest::Approx(0.0));
  CHECK(aggregate(Aggregation::kTokenMean, counts, losses) == doctest::Approx(0.5));
  CHECK(aggregate(Aggregation::kConstant, counts, losses, 4) == doctest::Approx(0.25));
}

TEST_CASE("B011 the KL term pulls towards the reference") {
  const auto logits = doubles({std::log(0.8), std::log(0.2)}).requires_grad_();
  const auto reference = doubles({std::log(0.5), std::log(0.5)});
  // The exact expectation of the k1 estimator over both tokens is the KL itself.
  const auto log_probs = at::log_softmax(logits, 0);
  (log_probs.exp() * kl_estimate(KlEstimator::kK1, log_probs, reference)).sum().backward();
  const auto after = at::log_softmax(logits.detach() - 0.1 * logits.grad(), 0);
  CHECK((after.exp() * (after - reference)).sum().item<double>() < 0.192745);
}

TEST_CASE("B019 the clip's sign table, with and without dual clip") {
  PolicyLossInput input;
  const auto log_ratio = doubles({0.5, 1.5, 5, 0.5, 1.5, 5}).log();
  input.log_probs_N = log_ratio;
  input.anchor_log_probs_N = at::zeros_like(log_ratio);
  input.advantages_N = doubles({1, 1, 1, -1, -1, -1});
  PolicyLossOptions options;
  CHECK(at::allclose(policy_loss(input, options).token_loss_N, doubles({-0.5, -1.2, -1.2, 0.8, 1.5, 5})));
  options.dual_clip = 3;
  CHECK(at::allclose(policy_loss(input, options).token_loss_N, doubles({-0.5, -1.2, -1.2, 0.8, 1.5, 3})));
}

TEST_CASE("B021 a pair's loss is over the scores at the last real tokens") {
  const auto loss = bradley_terry_loss(doubles({2.0}), doubles({0.5}), doubles({0.0}), 0);
  CHECK(loss.item<double>() == doctest::Approx(0.201413).epsilon(1e-5));
}

TEST_CASE("an absurd ratio stays finite, its gradient too") {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    PolicyLossInput input;
    input.log_probs_N = at::zeros({2}, dtype).requires_grad_();
    input.anchor_log_probs_N = at::full({2}, -1e5, dtype);
    input.behavior_log_probs_N = at::full({2}, -3e5, dtype);
    input.advantages_N = at::tensor({1.0, -1.0}, dtype);
    input.sequences_N = at::zeros({2}, at::kLong);
    input.num_sequences = 1;
    PolicyLossOptions options;
    options.correction = Correction::kSequenceTruncate;
    const auto loss = policy_loss(input, options).token_loss_N.sum();
    loss.backward();
    CHECK(std::isfinite(loss.item<double>()));
    CHECK(input.log_probs_N.grad().isfinite().all().item<bool>());
  }
}

TEST_CASE("a correction without the sampler's log-probs is refused") {
  PolicyLossInput input;
  input.log_probs_N = input.anchor_log_probs_N = input.advantages_N = doubles({0});
  PolicyLossOptions options;
  options.correction = Correction::kTokenTruncate;
  CHECK_THROWS_AS(policy_loss(input, options), Error);
}

TEST_CASE("the adaptive KL coefficient moves towards its target by at most a fifth") {
  KlCoefficient fixed(0.1, 0, 0), adaptive(0.1, 2, 100);
  fixed.update(50, 10);
  CHECK(fixed.value() == 0.1);
  adaptive.update(50, 10);
  CHECK(adaptive.value() == doctest::Approx(0.1 * 1.02));
  adaptive.update(1.9, 10);
  CHECK(adaptive.value() == doctest::Approx(0.1 * 1.02 * 0.995));
}

}  // namespace troupe
