// Sharded training against one process: losses, gradients, norms; and what moves, held against the formula.
#include "parallel/fully_sharded.h"

#include "base/error.h"
#include "tests/doctest.h"
#include "tests/parallel/ranks.h"
#include "tests/parallel/tiny_model.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

struct Variant {
  bool tied = true;
  std::string reshard = "default";
  RecomputeMode recompute = RecomputeMode::kNone;
  int num_microbatches = 1;
  bool reduce_every_time = false;
};

/// One step on this rank; adds up the global loss.
TinyResult sharded_step(FullyShardedDecoder& model, const Variant& variant) {
  auto& collectives = model.collectives();
  RecomputeRunner runner(model, variant.recompute, model.decoder().config().num_hidden_layers);
  TinyResult result;
  auto total = at::zeros({1}, at::kDouble);
  model.zero_gradients();
  const int parts = collectives.size() * variant.num_microbatches;
  for (int microbatch = 0; microbatch < variant.num_microbatches; ++microbatch) {
    model.set_reduce_gradients(variant.reduce_every_time || microbatch + 1 == variant.num_microbatches);
    const auto batch = tiny_rows(documents_of(microbatch * collectives.size() + collectives.rank(), parts));
    const auto hidden = model.decoder().forward(batch.tokens, batch.layout, runner);
    const auto loss = tiny_loss(hidden, model.head_weight(), batch);
    loss.backward();
    total += loss.item<double>();
  }
  model.finish_backward();
  collectives.all_reduce(total, "loss");
  result.loss = total.item<double>();
  result.norm = model.gradient_norm();
  result.gradients = model.gather_gradients();
  return result;
}

TensorMap moved(const TensorMap& weights, double factor, const TensorMap& gradients) {
  TensorMap result;
  for (const auto& [name, weight] : weights) result[name] = weight - factor * gradients.at(name);
  return result;
}

}  // namespace

TEST_CASE("1, 2 and 4 ranks agree with one process: loss, gradients of three steps, gradient norm") {
  const std::vector<Variant> variants = {{true, "default"},
                                         {false, "default"},
                                         {true, "always"},
                                         {false, "always"},
                                         {true, "never"},
                                         {true, "default", RecomputeMode::kFull},
                                         {false, "default", RecomputeMode::kSelective},
                                         {true, "default", RecomputeMode::kNone, 2},
                                         {false, "default", RecomputeMode::kNone, 2, true},
                                         {true, "never", RecomputeMode::kFull, 2}};
  for (const auto& variant : variants) {
    const auto config = tiny_config(variant.tied);
    for (const int size : {1, 2, 4}) {
      CAPTURE(size);
      CAPTURE(variant.reshard);
      CAPTURE(variant.num_microbatches);
      std::mutex mutex;
      run_ranks(size, [&](Collectives& collectives) {
        Decoder decoder(config);
        FullyShardedOptions options;
        options.reshard_after_forward = variant.reshard;
        FullyShardedDecoder model(decoder, collectives, options);
        auto weights = tiny_weights(config);
        model.load([&](const std::string& name) { return weights.at(name); });
        for (int step = 0; step < 3; ++step) {
          // At the weights that the shards hold: a gradient's rounding moves the weights, and the next gradients by
          // more than the bound. Where the weights go is compared on its own, below.
          const auto expected = tiny_reference(config, model.gather_weights(at::kFloat));
          weights = moved(weights, 0.1, tiny_reference(config, weights).gradients);
          const auto got = sharded_step(model, variant);
          // Plain gradient descent on the shards, and on the whole weights.
          for (auto& shard : model.shards()) shard.parameter.sub_(shard.gradient, 0.1);
          model.parameters_changed();
          std::lock_guard lock(mutex);
          CHECK(std::abs(got.loss - expected.loss) < 1e-6 * expected.loss);
          CHECK(std::abs(got.norm - expected.norm) < 2e-6 * expected.norm);
          CHECK(relative_difference(got.gradients, expected.gradients) < 1e-6);
        }
        const auto gathered = model.gather_weights(at::kFloat), borrowed = model.borrow_weights(at::kFloat);
        std::lock_guard lock(mutex);
        CHECK(relative_difference(gathered, weights) < 1e-6);
        REQUIRE(borrowed.size() == gathered.size());
        for (const auto& [name, tensor] : borrowed) CHECK(at::equal(tensor, gathered.at(name)));
      });
    }
  }
}

TEST_CASE("calls and bytes equal the formula, and the peak shows that units live one at a time") {
  for (const bool tied : {true, false}) {
    for (const int size : {2, 4}) {
      CAPTURE(tied);
      CAPTURE(size);
      const auto config = tiny_config(tied);
      std::vector<int64_t> padded(static_cast<size_t>(config.num_hidden_layers) + 2, 0);
      for (const auto& spec : parameter_specs(config))
        padded[static_cast<size_t>(spec.unit)] += c10::multiply_integers(spec.shape);
      for (auto& numel : padded) numel = (numel + size - 1) / size * size;
      int64_t all = 0;
      for (const auto numel : padded) all += numel;
      run_ranks(size, [&](Collectives& collectives) {
        Decoder decoder(config);
        FullyShardedDecoder model(decoder, collectives, {at::kBFloat16, at::kFloat});
        const auto weights = tiny_weights(config);
        model.load([&](const std::string& name) { return weights.at(name); });
        const auto batch = tiny_rows(documents_of(collectives.rank(), size));
        collectives.log().clear();
        forward_loss(model, batch).backward();
        model.finish_backward();
        if (collectives.rank() != 0) return;
        // Each layer twice; the embedding for its lookup, and where it is the head too once more for that; the last
        // unit once (kept from forward to backward). Gathers travel in bf16, gradients in fp32, each unit once.
        const int64_t layers = config.num_hidden_layers;
        const int64_t num_gathers = 2 * layers + 1 + (tied ? 1 : 0) + 1;
        int64_t gathered = (tied ? 2 : 1) * padded.front() + padded.back();
        for (int64_t layer = 1; layer <= layers; ++layer) gathered += 2 * padded[static_cast<size_t>(layer)];
        CHECK(collectives.log().totals("all_gather") == std::pair<int64_t, int64_t>{num_gathers, 2 * gathered});
        CHECK(collectives.log().totals("reduce_scatter") == std::pair<int64_t, int64_t>{layers + 2, 4 * all});
        // Never more than a layer beside the last unit and, where tied, the head.
        const int64_t peak = padded.back() + std::max(padded.front(), padded[1]);
        CHECK(model.peak_gathered_bytes() <= 2 * peak);
        CHECK(model.peak_gathered_bytes() < 2 * all * 2 / 3);
      });
    }
  }
}

TEST_CASE("accumulation without communication reduces once, and recompute gathers no more often") {
  const auto config = tiny_config(true);
  for (const bool reduce_every_time : {false, true}) {
    run_ranks(2, [&](Collectives& collectives) {
      Decoder decoder(config);
      FullyShardedDecoder model(decoder, collectives, {});
      const auto weights = tiny_weights(config);
      model.load([&](const std::string& name) { return weights.at(name); });
      collectives.log().clear();
      sharded_step(model, {true, "default", RecomputeMode::kFull, 3, reduce_every_time});
      if (collectives.rank() != 0) return;
      // The embedding is reduced in finish_backward, once a step, whatever the number of micro-batches.
      CHECK(collectives.log().totals("reduce_scatter").first == (reduce_every_time ? 3 * 4 + 1 : 5));
      int64_t unit_gathers = 0;
      for (const auto& record : collectives.log().records()) {
        unit_gathers += record.operation == "all_gather" && record.label.find("full") == std::string::npos;
      }
      CHECK(unit_gathers == 3 * (2 * 3 + 3));
    });
  }
}

TEST_CASE("one rank casts once a step, never frees, and has fp32 leaves over the shard itself") {
  const auto config = tiny_config(true);
  auto ranks = make_thread_collectives(1, std::chrono::seconds(5));
  const auto weights = tiny_weights(config);
  Decoder decoder(config);
  FullyShardedDecoder model(decoder, *ranks[0], {});
  model.load([&](const std::string& name) { return weights.at(name); });
  CHECK(decoder.parameter("model.embed_tokens.weight").data_ptr() == model.shards()[0].parameter.data_ptr());
  CHECK(ranks[0]->log().records().empty());

  Decoder decoder_bf16(config);
  FullyShardedDecoder model_bf16(decoder_bf16, *ranks[0], {at::kBFloat16, at::kFloat});
  model_bf16.load([&](const std::string& name) { return weights.at(name); });
  const auto batch = tiny_rows(documents_of(0, 1));
  const auto* before =
      (model_bf16.forward(batch.tokens, batch.layout), decoder_bf16.parameter("model.norm.weight").data_ptr());
  model_bf16.shards().back().parameter.fill_(2);
  model_bf16.forward(batch.tokens, batch.layout);
  CHECK(decoder_bf16.parameter("model.norm.weight")[0].item<float>() != 2);  // the copy is valid until told otherwise
  model_bf16.parameters_changed();
  model_bf16.forward(batch.tokens, batch.layout);
  CHECK(decoder_bf16.parameter("model.norm.weight")[0].item<float>() == 2);
  CHECK(decoder_bf16.parameter("model.norm.weight").data_ptr() == before);
}

TEST_CASE("head_gradient takes the head's gradient beside autograd") {
  const auto config = tiny_config(true);
  const auto weights = tiny_weights(config);
  const auto expected = tiny_reference(config, weights);
  for (const int size : {1, 2}) {
    run_ranks(size, [&](Collectives& collectives) {
      Decoder decoder(config);
      FullyShardedDecoder model(decoder, collectives, {});
      model.load([&](const std::string& name) { return weights.at(name); });
      const auto batch = tiny_rows(documents_of(collectives.rank(), size));
      model.zero_gradients();
      const auto hidden = model.forward(batch.tokens, batch.layout);
      const auto head = model.head_weight().detach().requires_grad_(true);
      const auto input = hidden.detach().requires_grad_(true);
      tiny_loss(input, head, batch).backward();
      model.head_gradient().add_(head.grad());
      hidden.backward(input.grad());
      model.finish_backward();
      CHECK(relative_difference(model.gather_gradients(), expected.gradients) < 1e-6);
    });
  }
}

TEST_CASE("a frozen forward between forward and backward does no harm, and several forwards may be open") {
  const auto config = tiny_config(true);
  const auto weights = tiny_weights(config);
  const auto expected = tiny_reference(config, weights);
  run_ranks(2, [&](Collectives& collectives) {
    Decoder decoder(config);
    FullyShardedDecoder model(decoder, collectives, {});
    model.load([&](const std::string& name) { return weights.at(name); });
    model.zero_gradients();
    const auto first = tiny_rows(documents_of(collectives.rank(), 4)),
               second = tiny_rows(documents_of(2 + collectives.rank(), 4));
    const auto loss_1 = forward_loss(model, first);
    {
      at::NoGradGuard no_grad;
      forward_loss(model, second);
    }
    const auto loss_2 = forward_loss(model, second);
    loss_1.backward();
    loss_2.backward();
    model.finish_backward();
    CHECK(relative_difference(model.gather_gradients(), expected.gradients) < 1e-6);
  });
}

TEST_CASE("hybrid sharding: replicas of shards agree with one process, and move what the formula says") {
  const auto config = tiny_config(false);
  const auto weights = tiny_weights(config);
  const auto expected = tiny_reference(config, weights);
  for (const auto& [num_replicas, num_shards] : std::vector<std::pair<int, int>>{{2, 2}, {4, 1}, {1, 4}, {3, 2}}) {
    for (const char* reshard : {"default", "always", "never"}) {
      CAPTURE(num_replicas);
      CAPTURE(num_shards);
      CAPTURE(reshard);
      run_groups(num_replicas, num_shards, [&](const RankGroups& groups) {
        Decoder decoder(config);
        FullyShardedOptions options;
        options.reshard_after_forward = reshard;
        FullyShardedDecoder model(decoder, ParallelPlan(config, groups.degrees(), groups.place(), {}), groups, options);
        model.load([&](const std::string& name) { return weights.at(name); });
        for (int step = 0; step < 2; ++step) {
          for (auto* group : {&groups.shards(), groups.replicas()})
            if (group != nullptr) group->log().clear();
          model.zero_gradients();
          const auto batch = tiny_rows(documents_of(groups.world().rank(), groups.world().size()));
          forward_loss(model, batch).backward();
          model.finish_backward();
          int64_t held = 0, units = 0;
          for (const auto& shard : model.shards()) {
            held += shard.parameter.numel();
            ++units;
          }
          // Each replica sums its own gradients into shards, then the shards are summed over replicas.
          using Totals = std::pair<int64_t, int64_t>;
          const auto scattered = groups.shards().log().totals("reduce_scatter");
          require((scattered == (num_shards == 1 ? Totals{0, 0} : Totals{units, 4 * held * num_shards})),
                  "reduce-scatter of ", scattered.second, " bytes");
          if (groups.replicas() != nullptr)
            require((groups.replicas()->log().totals("all_reduce") == Totals{units, 4 * held}), "all-reduce");
          require(std::abs(model.gradient_norm() - expected.norm) < 2e-6 * expected.norm, "norm ",
                  model.gradient_norm());
          require(relative_difference(model.gather_gradients(), expected.gradients) < 1e-6, "gradients differ");
        }
      });
    }
  }
}

TEST_CASE("a rank that throws ends the ranks of every group, its reason told by all") {
  auto ranks = make_thread_groups({.replicate = 2, .shard = 2}, std::chrono::seconds(20));
  const auto errors = run_groups_collecting(ranks, [](const RankGroups& groups) {
    groups.world().barrier("start");
    if (groups.world().rank() == 3) fail("the loss of step 7 is NaN");
    auto tensor = at::ones({4});
    groups.shards().all_reduce(tensor, "unit 1 gradient");
    groups.replicas()->all_reduce(tensor, "unit 1 gradient");
    groups.world().all_reduce(tensor, "metrics");
  });
  for (const auto& error : errors) CHECK_MESSAGE(error.find("the loss of step 7 is NaN") != std::string::npos, error);
}

TEST_CASE("B002 ranks with few tokens are not over-weighted") {
  // Rank 0: 4 tokens with gradient 1 each; rank 1: 1 token with gradient 6. The sum over the global count is 2.0.
  auto config = tiny_config(true);
  config.num_hidden_layers = 1;
  const auto weights = tiny_weights(config);
  run_ranks(2, [&](Collectives& collectives) {
    Decoder decoder(config);
    FullyShardedDecoder model(decoder, collectives, {});
    model.load([&](const std::string& name) { return weights.at(name); });
    model.zero_gradients();
    const auto hidden = model.forward(at::zeros({1}, at::kLong), {{{0, 1, -1}}, 1});
    const double sum = collectives.rank() == 0 ? 4 * 1.0 : 1 * 6.0;
    (hidden.sum() * 0 + model.head_weight()[5][3] * (sum / 5)).backward();
    model.finish_backward();
    CHECK(model.gather_gradients().at("model.embed_tokens.weight")[5][3].item<double>() == doctest::Approx(2.0));
  });
}

TEST_CASE("a unit without a gradient is named, and wrong options are refused") {
  const auto config = tiny_config(true);
  auto ranks = make_thread_collectives(1, std::chrono::seconds(5));
  Decoder decoder(config);
  FullyShardedDecoder model(decoder, *ranks[0], {});
  const auto weights = tiny_weights(config);
  model.load([&](const std::string& name) { return weights.at(name); });
  const auto batch = tiny_rows({0});
  model.forward(batch.tokens, batch.layout);
  CHECK_THROWS_WITH_AS(model.finish_backward(),
                       doctest::Contains("unit 4 took part in the forward but got no gradient"), Error);
  FullyShardedOptions options;
  options.reshard_after_forward = "sometimes";
  CHECK_THROWS_WITH_AS(FullyShardedDecoder(decoder, *ranks[0], options), doctest::Contains("sometimes"), UsageError);
}

TEST_CASE("the pieces of all ranks cover every parameter once") {
  const auto config = tiny_config(false);
  std::map<std::string, int64_t> covered;
  std::mutex mutex;
  run_ranks(4, [&](Collectives& collectives) {
    Decoder decoder(config);
    FullyShardedDecoder model(decoder, collectives, {});
    const auto weights = tiny_weights(config);
    model.load([&](const std::string& name) { return weights.at(name); });
    std::lock_guard lock(mutex);
    for (const auto& piece : model.pieces()) {
      covered[piece.name] += piece.flat_end - piece.flat_begin;
      const auto part = model.shards()[static_cast<size_t>(piece.unit)].parameter.narrow(
          0, piece.shard_begin, piece.flat_end - piece.flat_begin);
      CHECK(at::equal(part, weights.at(piece.name).reshape({-1}).slice(0, piece.flat_begin, piece.flat_end)));
    }
  });
  for (const auto& spec : parameter_specs(config)) CHECK(covered[spec.name] == c10::multiply_integers(spec.shape));
}
