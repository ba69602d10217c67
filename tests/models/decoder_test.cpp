// The decoder against itself in other forms: shared prompts against separate rows, packing against single documents,
// finite differences, recompute, and weights that are neighbours in memory.
#include "models/decoder.h"

#include "base/error.h"
#include "models/recompute.h"
#include "tests/doctest.h"
#include "tests/models/tiny_model.h"

namespace troupe {
namespace {

using testing::documents;
using testing::random_weights;
using testing::relative_difference;
using testing::tiny_config;

std::vector<int64_t> random_tokens(int64_t count, int64_t seed) {
  std::vector<int64_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = (seed * 7919 + i * i * 31 + i * 17) % 50;
  return tokens;
}

Tensor as_tensor(const std::vector<int64_t>& tokens) { return at::tensor(tokens, at::kLong); }

/// Gradients of sum(hidden * direction).
TensorMap gradients(const Decoder& decoder, const TensorMap& weights, const Tensor& tokens, const PackedLayout& layout,
                    const Tensor& direction, UnitRunner& runner) {
  for (const auto& [name, weight] : weights) weight.mutable_grad() = Tensor();
  const Tensor hidden = decoder.forward(tokens, layout, runner);
  torch::autograd::backward({(hidden * direction).sum()}, {});
  TensorMap result;
  for (const auto& [name, weight] : weights) {
    if (weight.grad().defined()) result[name] = weight.grad().clone();
  }
  return result;
}

}  // namespace

TEST_CASE("a shared prompt gives the hidden states and gradients of separate rows") {
  for (const std::string family : {"llama", "qwen3"}) {
    for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 1e-6}, std::pair{at::kDouble, 1e-13}}) {
      CAPTURE(family);
      CAPTURE(dtype);
      const auto config = tiny_config(family);
      const auto weights = random_weights(config, dtype);
      Decoder decoder(config);
      decoder.bind_all(weights);
      UnitRunner runner;
      // Two groups: a prompt of 70 with completions of 5, 66, 1; a prompt of 3 with 130 and 2.
      PackedLayout shared;
      const auto add = [&](int32_t length, int32_t parent) {
        shared.segments.push_back({shared.num_tokens, length, parent});
        shared.num_tokens += length;
      };
      add(70, -1), add(5, 0), add(66, 0), add(1, 0), add(3, -1), add(130, 4), add(2, 4);
      const auto tokens = random_tokens(shared.num_tokens, 3);
      at::manual_seed(5);
      const Tensor direction = at::randn({shared.num_tokens, config.hidden_size}, at::kDouble).to(dtype);
      const auto expected_hidden = decoder.forward(as_tensor(tokens), shared);
      const auto got = gradients(decoder, weights, as_tensor(tokens), shared, direction, runner);
      // Separate rows: every completion with its own copy of the prompt, whose loss counts in the first copy only.
      std::vector<int64_t> rows;
      std::vector<int32_t> lengths;
      std::vector<Tensor> row_direction, kept;
      for (const Segment& segment : shared.segments) {
        if (segment.parent < 0) continue;
        const Segment& prompt = shared.segments[segment.parent];
        const bool first = &segment == &shared.segments[segment.parent + 1];
        for (int32_t i = 0; i < prompt.length; ++i) rows.push_back(tokens[prompt.begin + i]);
        for (int32_t i = 0; i < segment.length; ++i) rows.push_back(tokens[segment.begin + i]);
        lengths.push_back(prompt.length + segment.length);
        const Tensor of_prompt = direction.narrow(0, prompt.begin, prompt.length);
        row_direction.push_back(first ? of_prompt : at::zeros_like(of_prompt));
        row_direction.push_back(direction.narrow(0, segment.begin, segment.length));
        if (first) kept.push_back(at::arange(prompt.length) + static_cast<int64_t>(rows.size()) - lengths.back());
        kept.push_back(at::arange(segment.length) + static_cast<int64_t>(rows.size()) - segment.length);
      }
      const auto layout = documents(lengths);
      const Tensor hidden = decoder.forward(as_tensor(rows), layout);
      CHECK(relative_difference(expected_hidden, hidden.index_select(0, at::cat(kept))) < 2 * tolerance);
      const auto wanted = gradients(decoder, weights, as_tensor(rows), layout, at::cat(row_direction), runner);
      // Of the whole gradient in the 2-norm; single tensors that nearly cancel have more rounding in fp32.
      double difference = 0, norm = 0;
      for (const auto& [name, gradient] : wanted) {
        CAPTURE(name);
        CHECK(relative_difference(got.at(name), gradient) < 5 * tolerance);
        difference += (got.at(name) - gradient).to(at::kDouble).square().sum().item<double>();
        norm += gradient.to(at::kDouble).square().sum().item<double>();
      }
      CHECK(std::sqrt(difference / norm) < tolerance);
    }
  }
}

TEST_CASE("gradients equal finite differences in float64") {
  const auto config = tiny_config("qwen3");
  const auto weights = random_weights(config, at::kDouble);
  Decoder decoder(config);
  decoder.bind_all(weights);
  UnitRunner runner;
  const auto layout = documents({7, 4});
  const Tensor tokens = as_tensor(random_tokens(11, 1));
  at::manual_seed(2);
  const Tensor direction = at::randn({11, config.hidden_size}, at::kDouble);
  const auto got = gradients(decoder, weights, tokens, layout, direction, runner);
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : weights) {
    const Tensor step = at::randn_like(weight) * 1e-6;
    const auto value = [&] { return (decoder.forward(tokens, layout) * direction).sum().item<double>(); };
    weight.add_(step);
    const double above = value();
    weight.sub_(step, 2);
    const double below = value();
    weight.add_(step);
    const double wanted = (above - below) / 2, slope = (got.at(name) * step).sum().item<double>();
    CAPTURE(name);
    CHECK(slope == doctest::Approx(wanted).epsilon(1e-5));
  }
}

TEST_CASE("B153 packed documents do not see each other") {
  const auto config = tiny_config();
  const auto weights = random_weights(config, at::kFloat);
  Decoder decoder(config);
  decoder.bind_all(weights);
  const at::NoGradGuard no_grad;
  const auto layout = documents({3, 2});
  CHECK(layout.positions() == std::vector<int32_t>{0, 1, 2, 0, 1});
  const auto logits = [&](const std::vector<int64_t>& tokens, const PackedLayout& row) {
    return decoder.logits(decoder.forward(as_tensor(tokens), row));
  };
  const Tensor packed = logits({4, 9, 2, 7, 1}, layout).narrow(0, 3, 2);
  CHECK(relative_difference(packed, logits({7, 1}, documents({2}))) < 1e-6);
  CHECK(at::equal(packed, logits({11, 30, 8, 7, 1}, layout).narrow(0, 3, 2)));
}

TEST_CASE("B034 positions come from the layout, not from the place in the row") {
  const auto config = tiny_config();
  const auto weights = random_weights(config, at::kFloat);
  Decoder decoder(config);
  decoder.bind_all(weights);
  const at::NoGradGuard no_grad;
  const Tensor alone = decoder.forward(as_tensor({5, 6, 7}), documents({3}));
  const Tensor later = decoder.forward(as_tensor({0, 0, 5, 6, 7}), documents({2, 3})).narrow(0, 2, 3);
  CHECK(relative_difference(later, alone) < 1e-6);
}

TEST_CASE("recompute gives the same gradients bit for bit and calls the inner runner once a unit") {
  struct CountingRunner : UnitRunner {
    std::vector<int64_t> units;
    Tensor run(int64_t unit, const Body& body, const Tensor& x) override {
      units.push_back(unit);
      return body(x);
    }
  };
  const auto config = tiny_config("qwen3");
  const auto weights = random_weights(config, at::kFloat);
  Decoder decoder(config);
  decoder.bind_all(weights);
  UnitRunner plain;
  const auto layout = documents({20, 9});
  const Tensor tokens = as_tensor(random_tokens(29, 4));
  at::manual_seed(3);
  const Tensor direction = at::randn({29, config.hidden_size});
  const auto wanted = gradients(decoder, weights, tokens, layout, direction, plain);
  for (const auto* mode : {"none", "selective", "full"}) {
    CountingRunner inner;
    RecomputeRunner runner(inner, parse_recompute_mode(mode), config.num_hidden_layers);
    const auto got = gradients(decoder, weights, tokens, layout, direction, runner);
    CHECK(inner.units == std::vector<int64_t>{0, 1, 2, 3});
    CAPTURE(mode);
    for (const auto& [name, gradient] : wanted) CHECK(at::equal(got.at(name), gradient));
  }
  CHECK_THROWS_AS(parse_recompute_mode("everything"), UsageError);
}

TEST_CASE("weights that are neighbours in one buffer give the same gradients as separate ones") {
  const auto config = tiny_config();
  const auto weights = random_weights(config, at::kFloat);
  Decoder decoder(config);
  decoder.bind_all(weights);
  UnitRunner runner;
  int64_t size = 0;
  for (const auto& [name, weight] : weights) size += weight.numel();
  const Tensor flat = at::empty({size});
  TensorMap views;
  int64_t offset = 0;
  for (const ParameterSpec& spec : decoder.specs()) {
    const Tensor& weight = weights.at(spec.name);
    views[spec.name] = flat.narrow(0, offset, weight.numel()).view(weight.sizes()).detach();
    views[spec.name].copy_(weight.detach());
    views[spec.name].requires_grad_();
    offset += weight.numel();
  }
  Decoder packed(config);
  packed.bind_all(views);
  const auto layout = documents({13});
  const Tensor tokens = as_tensor(random_tokens(13, 8)), direction = at::ones({13, config.hidden_size});
  const auto wanted = gradients(decoder, weights, tokens, layout, direction, runner);
  const auto got = gradients(packed, views, tokens, layout, direction, runner);
  for (const auto& [name, gradient] : wanted) {
    CAPTURE(name);
    CHECK(got.at(name).sizes() == gradient.sizes());
    CHECK(relative_difference(got.at(name), gradient) < 1e-6);
  }
}

TEST_CASE("wrong layouts, names, shapes and token ids are refused by name") {
  const auto config = tiny_config();
  Decoder decoder(config);
  CHECK_THROWS_WITH_AS(decoder.bind("model.nothing", at::zeros({1})), doctest::Contains("model.nothing"), Error);
  CHECK_THROWS_WITH_AS(decoder.bind("model.norm.weight", at::zeros({3})), doctest::Contains("model.norm.weight"),
                       Error);
  CHECK_THROWS_WITH_AS(decoder.bind_all({}), doctest::Contains("is missing"), Error);
  decoder.bind_all(random_weights(config, at::kFloat));
  CHECK_THROWS_WITH_AS(decoder.forward(as_tensor({1, 50}), documents({2})), doctest::Contains("token id 50"), Error);
  CHECK_THROWS_AS(decoder.forward(as_tensor({1, 2}), documents({3})), Error);
  PackedLayout gap{{{0, 2, -1}, {3, 1, -1}}, 4}, deep{{{0, 1, -1}, {1, 1, 0}, {2, 1, 1}}, 3};
  CHECK_THROWS_WITH_AS(gap.check(), doctest::Contains("begins at 3"), Error);
  CHECK_THROWS_WITH_AS(deep.check(), doctest::Contains("has a parent itself"), Error);
}

}  // namespace troupe
