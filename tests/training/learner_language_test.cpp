// The language-model step: denominators over ranks, evaluation, optimizer and clipping.
#include <nlohmann/json.hpp>

#include "models/decoder.h"
#include "training/flops.h"
#include "training/optimizer.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"

namespace troupe {
namespace {

using namespace testing;

/// Rows of random documents, uneven in number of targets; five labels of one are ignored.
std::vector<LanguageModelBatch> random_rows(int num_rows) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  std::vector<LanguageModelBatch> rows;
  for (int r = 0; r < num_rows; ++r) {
    LanguageModelBatch row;
    for (int d = 0; d < 1 + r % 3; ++d) {
      Document document;
      const auto ids = at::randint(40, {3 + (5 * r + 3 * d) % 8}, generator, at::kLong);
      for (int64_t i = 0; i < ids.numel(); ++i) document.tokens.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
      if (r == 1 && d == 0) document.loss_mask = {1, 0, 0, 0, 0, 0, 1, 1};
      append_document(row, document, 0, document.tokens.size());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<LanguageModelBatch> share(const std::vector<LanguageModelBatch>& rows, int rank, int num_ranks) {
  std::vector<LanguageModelBatch> mine;  // uneven on purpose: the last rank gets what is left
  for (size_t r = 0; r < rows.size(); ++r)
    if (std::min(static_cast<int>(r) / 2, num_ranks - 1) == rank) mine.push_back(rows[r]);
  return mine;
}

}  // namespace

TEST_CASE("B004 B097 every layout gives the same loss and gradient, each target weighing the same") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  const auto rows = random_rows(7);
  TensorMap leaves;
  for (const auto& [name, weight] : weights) leaves[name] = weight.to(at::kDouble).requires_grad_();
  Decoder decoder(config);
  decoder.bind_all(leaves);
  int64_t num_targets = 0;
  auto total = at::zeros({}, at::kDouble);
  for (const auto& row : rows) {
    const auto logits = decoder.logits(decoder.forward(at::tensor(row.tokens, at::kLong), row.layout));
    const auto targets = at::tensor(row.targets, at::kLong);
    total = total + at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, -1);
    num_targets += row.num_targets();
  }
  total = total / num_targets;
  total.backward();
  TensorMap expected;
  for (const auto& [name, leaf] : leaves) expected[name] = leaf.grad().to(at::kFloat);
  const auto loss = total.item<double>();

  // Ranks, tokens of a micro-batch, micro-batches: each row alone, some joined, all joined.
  struct Layout {
    int num_ranks;
    int64_t budget;
    double num_microbatches;
  };
  for (const auto& layout :
       {Layout{1, 24, 7}, {1, 48, 4}, {1, 4096, 1}, {2, 24, 5}, {2, 71, 3}, {3, 48, 2}, {3, 4096, 1}, {4, 24, 2}}) {
    CAPTURE(layout.num_ranks);
    CAPTURE(layout.budget);
    auto options = learner_options();
    options.max_context_length = 24;  // no row is longer
    options.num_tokens_per_microbatch = layout.budget;
    with_ranks(layout.num_ranks, config, options, weights, [&](Learner& learner, int rank) {
      const auto mine = share(rows, rank, layout.num_ranks);
      const auto evaluation = learner.evaluate_language_model(mine);
      const auto metrics = learner.train_language_model(mine);
      const auto gradients = learner.model().gather_gradients();
      if (rank != 0) return;
      CHECK(evaluation.at("validation/loss") == doctest::Approx(loss).epsilon(1e-6));
      CHECK(evaluation.at("validation/num_tokens") == static_cast<double>(num_targets));
      CHECK(metrics.at("loss/mean") == doctest::Approx(loss).epsilon(1e-6));
      CHECK(metrics.at("train_batch/num_tokens") == static_cast<double>(num_targets));
      CHECK(relative_difference(gradients, expected) < 2e-6);
      CHECK(metrics.at("train_batch/num_microbatches") == layout.num_microbatches);
    });
  }
}

TEST_CASE("B153 a document's loss does not depend on its neighbours") {
  const auto config = learner_config();
  const Document a{{1, 2, 3}, {}}, other{{7, 8, 9}, {}}, b{{4, 5}, {}};
  const auto row_of = [](const std::vector<Document>& documents) { return pack_documents(documents, 16).rows[0]; };
  with_one_rank(config, learner_options(), learner_weights(config), [&](Learner& learner) {
    const auto sum = [&](const std::vector<Document>& documents) {
      const auto metrics = learner.evaluate_language_model({row_of(documents)});
      return metrics.at("validation/loss") * metrics.at("validation/num_tokens");
    };
    CHECK(sum({a, b}) == doctest::Approx(sum({a}) + sum({b})).epsilon(1e-6));
    CHECK(sum({other, b}) - sum({other}) == doctest::Approx(sum({b})).epsilon(1e-5));
  });
}

TEST_CASE("rows without a target are an error, never a loss of 0") {
  const auto config = learner_config();
  LanguageModelBatch row;
  append_document(row, {{5}, {}}, 0, 1);
  with_one_rank(config, learner_options(), learner_weights(config), [&](Learner& learner) {
    CHECK_THROWS_AS(learner.train_language_model({row}), Error);
    CHECK_THROWS_AS(learner.evaluate_language_model({}), Error);
  });
}

TEST_CASE("recompute changes no bit of the gradient") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  const auto rows = random_rows(2);
  TensorMap expected;
  for (const std::string mode : {"none", "full", "selective"}) {
    auto options = learner_options();
    options.activation_checkpoint = mode;
    with_one_rank(config, options, weights, [&](Learner& learner) {
      learner.train_language_model(rows);
      const auto gradients = learner.model().gather_gradients();
      if (mode == "none") expected = gradients;
      CHECK(relative_difference(gradients, expected) == 0);
    });
  }
}

TEST_CASE("AdamW as the formula says: clipped gradient, no decay of one-dimensional parameters, any number of ranks") {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  auto options = learner_options();
  options.optimizer.weight_decay = 0.1;
  options.max_norm = 0.05;
  for (const int num_ranks : {1, 3}) {
    with_ranks(num_ranks, config, options, weights, [&](Learner& learner, int rank) {
      const auto rows = share(random_rows(5), rank, num_ranks);
      const auto metrics = learner.train_language_model(rows);
      REQUIRE(metrics.at("grad_norm") > options.max_norm);
      const auto gradients = learner.model().gather_gradients();
      const auto after = learner.gather_weights(at::kFloat);
      double squares = 0;
      for (const auto& [name, gradient] : gradients) squares += gradient.to(at::kDouble).square().sum().item<double>();
      CHECK(metrics.at("grad_norm") == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
      if (rank != 0) return;
      const double lr = options.optimizer.lr, scale = options.max_norm / metrics.at("grad_norm");
      for (const auto& [name, before] : weights) {
        CAPTURE(name);
        const auto p = before.to(at::kDouble), g = gradients.at(name).to(at::kDouble) * scale;
        const double decay = p.dim() > 1 ? options.optimizer.weight_decay : 0;
        // At the first step the bias-corrected moments are the gradient and its square.
        const auto expected = p * (1 - lr * decay) - lr * g / (g.abs() + options.optimizer.eps);
        CHECK((after.at(name).to(at::kDouble) - expected).abs().max().item<double>() < 1e-6);
      }
    });
  }
}

TEST_CASE("state goes out and comes back: a second learner goes on as the first") {
  const auto config = learner_config();
  auto options = learner_options();
  options.schedule = {.warmup_steps = 5, .total_steps = 10, .decay_ratio = 0.5};
  const auto rows = random_rows(3);
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    for (int step = 0; step < 3; ++step) learner.train_language_model(rows);
    auto middle = learner.gather_weights(at::kFloat);
    for (auto& [name, tensor] : middle) tensor = tensor.clone();
    auto collectives = make_thread_collectives(1, std::chrono::seconds(10));
    const auto second = make_learner(config, *collectives[0], options, middle);
    second->set_state(learner.state());
    const auto source = learner.optimizer_state(), target = second->optimizer_state();
    for (const auto& [kind, tensors] : source)
      for (size_t u = 0; u < tensors.size(); ++u) target.at(kind)[u].copy_(tensors[u]);
    CHECK(second->learning_rate() == learner.learning_rate());
    learner.train_language_model(rows);
    second->train_language_model(rows);
    CHECK(relative_difference(second->gather_weights(at::kFloat), learner.gather_weights(at::kFloat)) == 0);
  });
}

TEST_CASE("floating-point operations of a row") {
  ModelConfig config = learner_config();
  // q 32x32, k and v 16x32, o 32x32, three of 48x32; head 40x32.
  const double layers = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32), head = 40 * 32;
  const PackedLayout alone{{{0, 5, -1}}, 5};
  CHECK(training_flops(config, alone, 4) == 6 * layers * 5 + 6 * head * 4 + 12 * 2 * 32 * 15);
  const PackedLayout shared{{{0, 5, -1}, {5, 2, 0}}, 7};
  CHECK(training_flops(config, shared, 0) == 6 * layers * 7 + 12 * 2 * 32 * (15 + 10 + 3));
}

}  // namespace troupe
