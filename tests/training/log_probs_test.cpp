// Chunked log-probs against autograd of plain operations in float64.
#include "training/log_probs.h"

#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

struct Problem {
  Tensor hidden, weight, targets;
};

Problem make_problem(at::ScalarType dtype, int64_t num_tokens = 150, int64_t vocab_size = 203) {
  at::manual_seed(11);
  Problem problem;
  problem.hidden = at::randn({num_tokens, 32}).to(dtype).requires_grad_();
  problem.weight = (at::randn({vocab_size, 32}) * 0.3).to(dtype).requires_grad_();
  problem.targets = at::randint(0, 190, {num_tokens}, at::kLong);
  for (int64_t t = 0; t < num_tokens; t += 4) problem.targets[t] = -1;
  return problem;
}

/// The definition, in float64.
std::pair<Tensor, Tensor> plain(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double temperature,
                                int64_t vocab_size) {
  const Tensor log_p = at::log_softmax(at::mm(hidden, weight.narrow(0, 0, vocab_size).t()) / temperature, 1);
  const Tensor mask = targets.ge(0), safe = targets.clamp_min(0).unsqueeze(1);
  return {log_p.gather(1, safe).squeeze(1) * mask, -(log_p.exp() * log_p).sum(1) * mask};
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  return (x - y).abs().max().item<double>() / std::max(1e-30, y.abs().max().item<double>());
}

}  // namespace

TEST_CASE("values and gradients equal autograd of the definition, in every dtype, chunked, with a real vocabulary") {
  struct Case {
    at::ScalarType dtype;
    double value_tolerance, gradient_tolerance;
  };
  for (const auto& [dtype, value_tolerance, gradient_tolerance] :
       {Case{at::kDouble, 1e-13, 1e-12}, Case{at::kFloat, 2e-6, 2e-6}, Case{at::kBFloat16, 2e-6, 1e-2}}) {
    for (const bool with_entropy : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(with_entropy);
      const Problem problem = make_problem(dtype);
      const Tensor upstream = at::randn({150}, at::kDouble), of_entropy = at::randn({150}, at::kDouble) * with_entropy;
      LogProbOptions options;
      options.temperature = 0.7;
      options.vocab_size = 197;
      options.num_chunk_rows = 50;
      options.entropy_gradient = with_entropy;

      const Tensor hidden = problem.hidden.detach().to(at::kDouble).requires_grad_();
      const Tensor weight = problem.weight.detach().to(at::kDouble).requires_grad_();
      const auto [log_prob, entropy] = plain(hidden, weight, problem.targets, 0.7, 197);
      torch::autograd::backward({(log_prob * upstream).sum() + (entropy * of_entropy).sum()}, {});

      const auto check = [&](const LogProbs& got) {
        CHECK(relative_difference(got.log_prob_T, log_prob) < value_tolerance);
        CHECK(relative_difference(got.entropy_T, entropy) < value_tolerance);
        CHECK(relative_difference(problem.hidden.grad(), hidden.grad()) < gradient_tolerance);
        CHECK(relative_difference(problem.weight.grad(), weight.grad()) < gradient_tolerance);
        CHECK(problem.weight.grad().narrow(0, 197, 6).abs().max().item<double>() == 0);
        problem.hidden.mutable_grad() = problem.weight.mutable_grad() = Tensor();
      };
      const auto general = log_probs(problem.hidden, problem.weight, problem.targets, options);
      CHECK(general.entropy_T.requires_grad() == with_entropy);
      Tensor loss = (general.log_prob_T * upstream).sum();
      if (with_entropy) loss = loss + (general.entropy_T * of_entropy).sum();
      torch::autograd::backward({loss}, {});
      check(general);
      const auto fused =
          log_prob_loss(problem.hidden, problem.weight, problem.targets, options,
                        [&](const Tensor& chunk_log_prob, const Tensor& chunk_entropy, const Tensor& rows) {
                          return (chunk_log_prob * upstream.index_select(0, rows)).sum() +
                                 (chunk_entropy * of_entropy.index_select(0, rows)).sum();
                        });
      CHECK(!fused.values.log_prob_T.requires_grad());
      CHECK(fused.loss.item<double>() == doctest::Approx(loss.item<double>()).epsilon(1e-4));
      torch::autograd::backward({fused.loss}, {});
      check(fused.values);
    }
  }
}

TEST_CASE("B030 the temperature divides the logits") {
  const Tensor hidden = at::tensor({2.0f, 1.0f, 0.0f}).view({1, 3}), weight = at::eye(3);
  LogProbOptions options;
  options.temperature = 0.5;
  const auto got = log_probs(hidden, weight, at::tensor({int64_t{0}}), options);
  CHECK(got.log_prob_T.item<double>() == doctest::Approx(-0.142932).epsilon(1e-5));
}

TEST_CASE("B036 index t speaks of the target given what stands at t, in log-prob and entropy alike") {
  // Token i's successor is known: row i of the table.
  const Tensor table = at::tensor({0.7f, 0.2f, 0.1f, 0.1f, 0.8f, 0.1f, 0.25f, 0.25f, 0.5f}).view({3, 3}).log();
  const Tensor tokens = at::tensor({0, 1, 2}, at::kLong);
  const Tensor targets = at::tensor({1, 2, -1}, at::kLong);
  const auto got = log_probs(table.index_select(0, tokens), at::eye(3), targets, {});
  const double entropy_of_first = -(0.7 * std::log(0.7) + 0.2 * std::log(0.2) + 0.1 * std::log(0.1));
  CHECK(got.log_prob_T[0].item<double>() == doctest::Approx(std::log(0.2)).epsilon(1e-5));
  CHECK(got.log_prob_T[1].item<double>() == doctest::Approx(std::log(0.1)).epsilon(1e-5));
  CHECK(got.entropy_T[0].item<double>() == doctest::Approx(entropy_of_first).epsilon(1e-5));
  CHECK(got.log_prob_T[2].item<double>() == 0);
  CHECK(got.entropy_T[2].item<double>() == 0);
}

TEST_CASE("B123 what is returned for metrics holds no graph") {
  const Problem problem = make_problem(at::kFloat, 8);
  const auto got = log_probs(problem.hidden, problem.weight, problem.targets, {});
  CHECK(got.log_prob_T.requires_grad());
  CHECK(!got.entropy_T.requires_grad());
  const auto fused = log_prob_loss(problem.hidden, problem.weight, problem.targets, {},
                                   [](const Tensor& log_prob, const Tensor&, const Tensor&) { return log_prob.sum(); });
  CHECK(!fused.values.log_prob_T.requires_grad());
  CHECK(!fused.values.entropy_T.requires_grad());
}

TEST_CASE("a row without any target has zero loss and zero, finite gradients") {
  const Problem problem = make_problem(at::kFloat, 5);
  const auto fused = log_prob_loss(problem.hidden, problem.weight, at::full({5}, -1, at::kLong), {},
                                   [](const Tensor& log_prob, const Tensor&, const Tensor&) { return log_prob.sum(); });
  CHECK(fused.loss.item<double>() == 0);
  torch::autograd::backward({fused.loss}, {});
  CHECK(problem.hidden.grad().abs().max().item<double>() == 0);
  CHECK(problem.weight.grad().abs().max().item<double>() == 0);
}

TEST_CASE("wrong options and targets are refused") {
  const Problem problem = make_problem(at::kFloat, 5);
  LogProbOptions options;
  options.temperature = 0;
  CHECK_THROWS_AS(log_probs(problem.hidden, problem.weight, problem.targets, options), Error);
  options.temperature = 1;
  options.vocab_size = 204;
  CHECK_THROWS_AS(log_probs(problem.hidden, problem.weight, problem.targets, options), Error);
  options.vocab_size = 100;
  CHECK_THROWS_WITH_AS(log_probs(problem.hidden, problem.weight, at::full({5}, 100, at::kLong), options),
                       doctest::Contains("outside"), Error);
}

}  // namespace troupe
