// Public bugs of layouts: norms that count wrong, copies of one parameter that drift apart, micro-batches that are
// lost.
#include "parallel/tensor_slices.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"
#include "training/documents.h"

namespace troupe {
namespace {

using namespace testing;

LearnerOptions case_options() {
  auto options = learner_options();
  options.num_tokens_per_microbatch = 8;
  options.optimizer.weight_decay = 0;
  return options;
}

/// One document a row.
std::vector<LanguageModelBatch> rows_of_lengths(const std::vector<int64_t>& lengths, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<LanguageModelBatch> rows;
  for (const auto length : lengths) {
    Document document;
    const auto ids = at::randint(40, {length}, generator, at::kLong);
    for (int64_t i = 0; i < length; ++i) document.tokens.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
    rows.emplace_back();
    append_document(rows.back(), document, 0, document.tokens.size());
  }
  return rows;
}

/// The part of `whole` that `box` names, flat.
Tensor flat_box(Tensor whole, const TensorBox& box) {
  for (size_t i = 0; i < box.start.size(); ++i)
    whole = whole.narrow(static_cast<int64_t>(i), box.start[i], box.size[i]);
  return whole.flatten();
}

/// Every rank's own elements against the gathered tensors, which come from the first rank that holds them.
int64_t require_equal_copies(Learner& learner) {
  const auto whole = learner.gather_weights(at::kFloat);
  int64_t num_elements_of_copies = 0;
  for (const auto& piece : learner.model().pieces()) {
    int64_t position = piece.shard_begin;
    for (const auto& box : boxes_in_part(piece.part, piece.flat_begin, piece.flat_end)) {
      const auto numel = c10::multiply_integers(box.size);
      const auto& shard = learner.model().shards()[static_cast<size_t>(piece.unit)].parameter;
      require(at::equal(shard.narrow(0, position, numel), flat_box(whole.at(piece.name), box)), piece.name,
              " has drifted from its copy");
      position += numel;
      if (!piece.is_first) num_elements_of_copies += numel;
    }
  }
  return num_elements_of_copies;
}

/// Gives the first element of this rank's part of a parameter a gradient; false where the rank holds none of it.
bool set_gradient(Learner& learner, const std::string& name, float value) {
  for (const auto& piece : learner.model().pieces()) {
    if (piece.name != name || piece.flat_begin == piece.flat_end) continue;
    learner.model().shards()[static_cast<size_t>(piece.unit)].gradient[piece.shard_begin] = value;
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("B092 the gradient norm is of all pipeline stages, and each stage clips by it") {
  const auto config = learner_config(false);
  std::vector<double> norms(2);
  with_mesh({.pipeline = 2}, config, case_options(), learner_weights(config),
            [&](Learner& learner, const RankGroups& groups) {
              learner.model().zero_gradients();
              const bool is_first = groups.place().pipeline == 0;
              const auto name = is_first ? "model.embed_tokens.weight" : "model.norm.weight";
              require(set_gradient(learner, name, is_first ? 3 : 4), "the stage holds ", name);
              norms[static_cast<size_t>(groups.world().rank())] = learner.model().gradient_norm();
            });
  for (const double norm : norms) CHECK(std::abs(norm - 5) < 1e-9);

  // Clipped to 1 by every layout alike: with plain steps of one size, AdamW's first update is blind to the scale, so
  // two steps of unlike gradients are compared.
  auto options = case_options();
  options.max_norm = 1e-3;
  const auto train = [&](Learner& learner) {
    learner.train_language_model(rows_of_lengths({8}, 1));
    learner.train_language_model(rows_of_lengths({8, 5, 8, 3}, 2));
    return learner.gather_weights(at::kFloat);
  };
  TensorMap expected;
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) { expected = train(learner); });
  for (auto& [name, tensor] : expected) tensor = tensor.clone();
  std::vector<double> differences(2, 1);
  with_mesh({.pipeline = 2}, config, options, learner_weights(config), [&](Learner& learner, const RankGroups& groups) {
    differences[static_cast<size_t>(groups.world().rank())] = relative_difference(train(learner), expected);
  });
  for (const double difference : differences) CHECK(difference < 1e-5);
}

TEST_CASE("B093 a parameter that all tensor ranks hold counts once in the gradient norm") {
  const auto config = learner_config(false);
  std::vector<double> norms(2);
  with_mesh({.tensor = 2}, config, case_options(), learner_weights(config),
            [&](Learner& learner, const RankGroups& groups) {
              learner.model().zero_gradients();
              const bool is_first = groups.place().tensor == 0;
              require(set_gradient(learner, "model.layers.0.mlp.up_proj.weight", is_first ? 3 : 4), "split");
              require(set_gradient(learner, "model.norm.weight", 12), "held by both");
              norms[static_cast<size_t>(groups.world().rank())] = learner.model().gradient_norm();
            });
  for (const double norm : norms) CHECK(std::abs(norm - 13) < 1e-9);
}

TEST_CASE("B101 the copies of a tied embedding on the first and last stage stay equal, bit for bit, sharded too") {
  const auto config = learner_config(true);
  std::vector<int64_t> num_copied(4);  // by rank: the last stage's two are the last
  with_mesh({.pipeline = 2, .shard = 2}, config, case_options(), learner_weights(config),
            [&](Learner& learner, const RankGroups& groups) {
              for (uint64_t step = 0; step < 3; ++step) {
                const auto rows = rows_of_lengths({8, 5, 8, 3}, step);
                const auto mine = static_cast<size_t>(groups.data_rank()) * 2;
                learner.train_language_model({rows[mine], rows[mine + 1]});
                num_copied[static_cast<size_t>(groups.world().rank())] += require_equal_copies(learner);
              }
            });
  CHECK((num_copied[0] == 0 && num_copied[1] == 0));
  CHECK((num_copied[2] > 0 && num_copied[3] > 0));
}

TEST_CASE("B102 every micro-batch of a pipeline counts") {
  const auto config = learner_config();
  const auto rows = rows_of_lengths({8, 5, 8, 3}, 5);
  TensorMap expected;
  with_one_rank(config, case_options(), learner_weights(config), [&](Learner& learner) {
    learner.train_language_model(rows);
    for (const auto& [name, tensor] : learner.model().gather_gradients()) expected[name] = tensor.clone();
  });
  for (const char* schedule : {"GPipe", "1F1B", "ZB-H1"}) {
    CAPTURE(schedule);
    auto options = case_options();
    options.parallel.pipeline.schedule = schedule;
    std::vector<double> differences(2, 1);
    with_mesh({.pipeline = 2}, config, options, learner_weights(config),
              [&](Learner& learner, const RankGroups& groups) {
                learner.train_language_model(rows);
                differences[static_cast<size_t>(groups.world().rank())] =
                    relative_difference(learner.model().gather_gradients(), expected);
              });
    for (const double difference : differences) CHECK(difference < 1e-6);
  }
}

TEST_CASE("B104 norms of heads that tensor ranks hold copies of get the sum of all heads' gradients, on every path") {
  auto config = learner_config(false);
  config.query_key_norm = true;
  const auto weights = learner_weights(config);
  const auto language = [](Learner& learner) { learner.train_language_model(rows_of_lengths({8, 5, 8, 3}, 3)); };
  const auto policy = [](Learner& learner) { learner.train_policy(learner_batch(2, 4)); };
  for (const std::function<void(Learner&)>& path :
       {std::function<void(Learner&)>(language), std::function<void(Learner&)>(policy)}) {
    TensorMap expected;
    with_one_rank(config, case_options(), weights, [&](Learner& learner) {
      path(learner);
      for (const auto& [name, tensor] : learner.model().gather_gradients()) expected[name] = tensor.clone();
    });
    for (const bool splits_tokens : {true, false}) {
      auto options = case_options();
      options.parallel.sequence_parallel = splits_tokens;
      std::vector<int64_t> num_copied(2);
      with_mesh({.tensor = 2}, config, options, weights, [&](Learner& learner, const RankGroups& groups) {
        path(learner);
        const auto got = learner.model().gather_gradients();
        for (const char* name : {"model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"}) {
          const auto difference = relative_difference({{name, got.at(name)}}, {{name, expected.at(name)}});
          require(difference < 1e-5, name, " differs by ", difference);
        }
        for (int step = 0; step < 4; ++step) path(learner);
        num_copied[static_cast<size_t>(groups.world().rank())] = require_equal_copies(learner);
      });
      CHECK(num_copied[0] == 0);
      CHECK(num_copied[1] > 0);
    }
  }
}

}  // namespace troupe
