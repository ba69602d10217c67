// Every form of parallelism and their combinations against one rank: loss, gradients and gradient norm of several
// steps, for a language-model step and for policy steps. A short table here, the whole one with TROUPE_SOAK=1
// (scripts/soak).
#include <cstdlib>

#include "tests/doctest.h"
#include "tests/training/layout_steps.h"

namespace troupe {
namespace {

using namespace testing;

struct Layout {
  MeshDegrees degrees;
  std::string schedule = "1F1B";
  bool sequence_parallel = true, head_tail = true;
  std::string recompute = "none";
  bool has_extras = false;  // untied head, biases, head norms; sizes that divide by nothing

  std::string describe() const {
    return concat(troupe::describe(degrees), " ", schedule, sequence_parallel ? "" : ", whole tokens",
                  head_tail ? "" : ", no balance", ", recompute ", recompute, has_extras ? ", extras" : "");
  }
};

ModelConfig layout_config(const Layout& layout) {
  auto config = learner_config(!layout.has_extras);
  config.num_hidden_layers = 4;
  if (!layout.has_extras) return config;
  config.vocab_size = 43;
  config.intermediate_size = 37;
  config.attention_bias = config.attention_output_bias = config.mlp_bias = config.query_key_norm = true;
  return config;
}

LearnerOptions layout_options(const Layout& layout) {
  auto options = learner_options();
  // In float64, so that what a layout does wrong is told from rounding; masters, gradients and states stay fp32.
  options.parallel.sharding.parameter_dtype = at::kDouble;
  options.num_tokens_per_microbatch = 24;  // several micro-batches a step
  options.activation_checkpoint = layout.recompute;
  options.parallel.sequence_parallel = layout.sequence_parallel;
  options.parallel.head_tail = layout.head_tail;
  options.parallel.pipeline.schedule = layout.schedule;
  return options;
}

/// Packed documents; some rows have fewer tokens than there are context ranks, some an odd number.
std::vector<LanguageModelBatch> layout_rows() { return ragged_rows(6, 2); }

/// One step of an objective; `data_rank` of `num_data_ranks` takes its share where shares are given.
using Objective = std::function<Metrics(Learner& learner, int data_rank, int num_data_ranks)>;

Step take_step(Learner& learner, const Objective& objective, int data_rank, int num_data_ranks) {
  return step_of(learner, objective(learner, data_rank, num_data_ranks));
}

Metrics language_step(Learner& learner, int data_rank, int num_data_ranks) {
  return learner.train_language_model(share_of(layout_rows(), data_rank, num_data_ranks));
}

Metrics policy_step(Learner& learner, int, int) { return learner.train_policy(learner_batch(2, 4)); }

/// Steps of one rank, each from the weights that it then has.
struct Reference {
  std::vector<TensorMap> weights;
  std::vector<Step> steps;
};

Reference one_rank(const Layout& layout, const LearnerOptions& options, const Objective& objective, int num_steps) {
  const auto config = layout_config(layout);
  Reference reference;
  with_one_rank(config, options, learner_weights(config), [&](Learner& learner) {
    for (int step = 0; step < num_steps; ++step) {
      auto weights = learner.gather_weights(at::kFloat);
      for (auto& [name, tensor] : weights) tensor = tensor.clone();
      reference.weights.push_back(std::move(weights));
      reference.steps.push_back(take_step(learner, objective, 0, 1));
    }
  });
  return reference;
}

/// Each step starts from the reference's weights: a gradient's rounding moves weights by more than the bound.
void check_layout(const Layout& layout, const LearnerOptions& options, const Objective& objective,
                  const Reference& reference) {
  const auto config = layout_config(layout);
  CAPTURE(layout.describe());
  with_mesh(layout.degrees, config, options, reference.weights.front(),
            [&](Learner& learner, const RankGroups& groups) {
              for (size_t step = 0; step < reference.steps.size(); ++step) {
                learner.load([&](const std::string& name) { return reference.weights[step].at(name); });
                require_equal(take_step(learner, objective, groups.data_rank(), groups.num_data_ranks()),
                              reference.steps[step], concat(layout.describe(), ", step ", step));
              }
            });
  CHECK(true);
}

std::vector<Layout> table() {
  std::vector<Layout> layouts = {
      {.degrees = {.tensor = 2}, .has_extras = true},
      {.degrees = {.tensor = 4}, .sequence_parallel = false},
      {.degrees = {.context = 2}, .has_extras = true},
      {.degrees = {.pipeline = 2}},
      {.degrees = {.pipeline = 2}, .schedule = "ZBV", .has_extras = true},
      {.degrees = {.pipeline = 2, .shard = 2, .tensor = 2}, .schedule = "ZB-H1", .recompute = "full"},
      {.degrees = {.replicate = 2, .context = 2, .tensor = 2}, .recompute = "selective", .has_extras = true},
  };
  if (std::getenv("TROUPE_SOAK") == nullptr) return layouts;
  // Every degree of 2, every pair and every triple of them, plain and with extras.
  for (int bits = 1; bits < 32; ++bits) {
    if (__builtin_popcount(static_cast<unsigned>(bits)) > 3) continue;
    const auto degree = [&](int bit) { return (bits >> bit) & 1 ? 2 : 1; };
    const MeshDegrees degrees{degree(0), degree(1), degree(2), degree(3), degree(4)};
    for (const bool has_extras : {false, true})
      layouts.push_back({.degrees = degrees, .sequence_parallel = has_extras, .has_extras = has_extras});
    if (degrees.pipeline == 1) continue;
    for (const char* schedule : {"GPipe", "Interleaved1F1B", "ZB-H1", "ZBV"})
      layouts.push_back({.degrees = degrees, .schedule = schedule, .recompute = "full", .has_extras = true});
  }
  for (const int degree : {4, 8}) {
    layouts.push_back({.degrees = {.context = degree}});
    layouts.push_back({.degrees = {.context = degree}, .head_tail = false, .has_extras = true});
    if (degree == 4) layouts.push_back({.degrees = {.tensor = degree}, .has_extras = true});
    layouts.push_back({.degrees = {.shard = degree}});
  }
  for (const char* schedule : {"GPipe", "1F1B", "ZB-H1"}) {
    layouts.push_back({.degrees = {.pipeline = 4}, .schedule = schedule});
    layouts.push_back({.degrees = {.pipeline = 4, .tensor = 2}, .schedule = schedule, .has_extras = true});
  }
  return layouts;
}

void check_table(const Objective& objective, const std::function<void(LearnerOptions&)>& change) {
  std::map<bool, Reference> references;
  for (const auto& layout : table()) {
    auto options = layout_options(layout);
    change(options);
    if (!references.contains(layout.has_extras))
      references[layout.has_extras] = one_rank({.degrees = {}, .has_extras = layout.has_extras}, options, objective, 2);
    check_layout(layout, options, objective, references.at(layout.has_extras));
  }
}

}  // namespace

TEST_CASE("B004 every layout pre-trains as one rank does: losses, gradients, gradient norms") {
  check_table(language_step, [](LearnerOptions&) {});
}

TEST_CASE("B016 every layout makes the GRPO step of one rank") {
  check_table(policy_step, [](LearnerOptions& options) {
    options.algorithm.kl_coefficient = 0.02;
    options.algorithm.entropy_coefficient = 0.01;
    options.algorithm.whiten_advantages = true;  // over the batch, whoever holds its tokens
    options.algorithm.old_log_probs = "recomputed";
    options.algorithm.correction = "sequence-truncate";
    options.algorithm.correction_cap = 2;
  });
}

TEST_CASE("B004 B107 every target weighs the same and none is lost where a row is cut, whatever the layout") {
  // 12 tokens in two documents, 5 of them without a target: each of the 7 others weighs 1/7.
  std::vector<LanguageModelBatch> rows(2);
  append_document(rows[0], {{1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 1, 0, 1, 1, 1, 1}}, 0, 8);
  append_document(rows[1], {{9, 10, 11, 12}, {0, 0, 1, 0}}, 0, 4);
  const Layout one{.degrees = {}};
  const auto step = [&](Learner& learner, int data_rank, int num_data_ranks) {
    return learner.train_language_model(num_data_ranks == 1 ? rows : std::vector{rows[static_cast<size_t>(data_rank)]});
  };
  const auto reference = one_rank(one, layout_options(one), step, 1);
  for (const auto& degrees : {MeshDegrees{.shard = 2}, MeshDegrees{.pipeline = 2}, MeshDegrees{.context = 2}}) {
    check_layout({.degrees = degrees}, layout_options(one), step, reference);
    with_mesh(degrees, layout_config(one), layout_options(one), reference.weights[0],
              [&](Learner& learner, const RankGroups& groups) {
                const auto metrics = step(learner, groups.data_rank(), groups.num_data_ranks());
                require(metrics.at("train_batch/num_tokens") == 7, "targets: ", metrics.at("train_batch/num_tokens"));
              });
  }
}

TEST_CASE("a loss that joins a sequence's tokens, and log-probs of trajectories, do not depend on the layout") {
  const Layout one{};
  auto options = layout_options(one);
  options.algorithm.policy_loss = "gspo";
  options.algorithm.old_log_probs = "recomputed";
  const auto reference = one_rank(one, options, policy_step, 1);
  const auto batch = learner_batch(2, 4);
  std::vector<std::vector<float>> log_probs;
  with_one_rank(layout_config(one), options, reference.weights[0],
                [&](Learner& learner) { log_probs = learner.log_probs(batch); });
  for (const auto& degrees : {MeshDegrees{.context = 2}, MeshDegrees{.pipeline = 2, .context = 2, .tensor = 2}}) {
    check_layout({.degrees = degrees}, options, policy_step, reference);
    with_mesh(degrees, layout_config(one), options, reference.weights[0], [&](Learner& learner, const RankGroups&) {
      const auto got = learner.log_probs(batch);
      for (size_t s = 0; s < batch.size(); ++s)
        for (size_t t = 0; t < got[s].size(); ++t)
          require(std::abs(got[s][t] - log_probs[s][t]) < 2e-5, "log-prob of token ", t, " of sample ", s);
    });
  }
}

TEST_CASE("in fp32 a layout is as near to float64 as one rank is") {
  const Layout exact{.degrees = {}, .has_extras = true};
  auto options = layout_options(exact);
  const auto reference = one_rank(exact, options, language_step, 1);
  options.parallel.sharding.parameter_dtype = at::kFloat;
  const auto error_of = [&](const MeshDegrees& degrees) {
    double error = 0;
    with_mesh(degrees, layout_config(exact), options, reference.weights[0],
              [&](Learner& learner, const RankGroups& groups) {
                const auto step = take_step(learner, language_step, groups.data_rank(), groups.num_data_ranks());
                if (groups.world().rank() == 0)
                  error = relative_difference(step.gradients, reference.steps[0].gradients);
              });
    return error;
  };
  const double alone = error_of({});
  CHECK(alone < 3e-6);
  for (const auto& degrees : {MeshDegrees{.tensor = 4}, MeshDegrees{.context = 2}, MeshDegrees{.pipeline = 2}}) {
    CAPTURE(describe(degrees));
    CHECK(error_of(degrees) < std::max(3 * alone, 2e-6));
  }
}

TEST_CASE("tensor, context and pipeline ranks move what the formula says") {
  const Layout layout{.degrees = {}};
  const auto config = layout_config(layout);
  const auto row = layout_rows()[2];
  const int64_t num_layers = config.num_hidden_layers, num_targets = row.num_targets();
  const auto totals = [&](Collectives& group, const char* operation, const std::string& label) {
    std::pair<int64_t, int64_t> calls_and_bytes{0, 0};
    for (const auto& record : group.log().records()) {
      if (record.operation != operation || record.label.find(label) == std::string::npos) continue;
      ++calls_and_bytes.first;
      calls_and_bytes.second += record.bytes;
    }
    return calls_and_bytes;
  };
  const auto moved = [&](const MeshDegrees& degrees,
                         const std::function<void(const RankGroups&, int64_t bytes)>& check) {
    with_mesh(degrees, config, layout_options(layout), learner_weights(config),
              [&](Learner& learner, const RankGroups& groups) {
                groups.world().log().clear();
                learner.train_language_model({row});
                // Of one copy of the row's activations in float64, padded as the layout wants it.
                const int64_t multiple = degrees.tensor > 1 ? 2 * degrees.tensor : 2 * degrees.context;
                const int64_t num_tokens = (row.layout.num_tokens + multiple - 1) / multiple * multiple;
                check(groups, 8 * config.hidden_size *
                                  (degrees == MeshDegrees{.pipeline = 2} ? row.layout.num_tokens : num_tokens));
              });
  };
  using Totals = std::pair<int64_t, int64_t>;
  moved({.tensor = 2}, [&](const RankGroups& groups, int64_t bytes) {
    // Tokens: two a layer forward and backward, and before the head; in backward also behind the embedding. Sums: the
    // reverse. Of the softmax four numbers a target and rank, once: never logits.
    auto& group = *groups.tensor();
    const int64_t calls = 4 * num_layers + 2;
    require((totals(group, "all_gather", "tokens of the tensor ranks") == Totals{calls, calls * bytes}), "all-gather");
    require((totals(group, "reduce_scatter", "sums of the tensor ranks") == Totals{calls, calls * bytes}), "scatter");
    require((totals(group, "all_gather", "softmax") == Totals{1, 2 * 4 * num_targets * 8}), "softmax");
    // Gradients of norms, which every rank has of its own tokens alone: one sum a unit that has norms.
    const int64_t norms = (2 * num_layers + 1) * config.hidden_size * 4;
    require((totals(group, "all_reduce", "over tensor ranks") == Totals{num_layers + 1, norms}), "norms");
  });
  moved({.context = 2}, [&](const RankGroups& groups, int64_t bytes) {
    // Half the tokens, K of H heads, keys and values: forward once, backward once, and their gradients home.
    const int64_t part = bytes / 2 * 2 * config.num_key_value_heads * config.head_dim / config.hidden_size;
    require((totals(*groups.context(), "send", "keys and values") ==
             Totals{num_layers * (1 + 1 + 2), num_layers * 4 * part}),
            "ring");
  });
  moved({.pipeline = 2}, [&](const RankGroups& groups, int64_t bytes) {
    require((totals(*groups.pipeline(), "send", "micro-batch") == Totals{1, bytes}), "activations or their gradient");
    // The tied embedding's gradient, once a step.
    require(
        (totals(*groups.tied(), "all_reduce", "tied stages") == Totals{1, config.vocab_size * config.hidden_size * 4}),
        "tied");
  });
}

TEST_CASE("any layout loads any layout's checkpoint, weights and optimizer states bit for bit") {
  const Layout extras{.degrees = {}, .has_extras = true};
  const std::vector<MeshDegrees> layouts = {{},
                                            {.shard = 2, .tensor = 2},
                                            {.pipeline = 2, .context = 2},
                                            {.pipeline = 2, .shard = 2, .tensor = 2},
                                            {.tensor = 4},
                                            {.replicate = 2, .shard = 2},
                                            {}};
  CHECK_NOTHROW(require_checkpoints_to_fit(layouts, layout_config(extras), layout_options(extras), layout_rows(),
                                           "troupe_layouts"));
}

TEST_CASE("a rank that throws ends the ranks of every dimension, which name the collective and the reason") {
  const Layout layout{.degrees = {.pipeline = 2, .shard = 2, .tensor = 2}};
  const auto config = layout_config(layout);
  auto ranks = make_thread_groups(layout.degrees, std::chrono::seconds(30));
  const auto weights = learner_weights(config);
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Learner learner(config, ranks[rank], layout_options(layout));
        learner.load([&](const std::string& name) { return weights.at(name); });
        language_step(learner, ranks[rank].data_rank(), ranks[rank].num_data_ranks());
        if (rank == 5) fail("shard 5, train step at step 2: no memory");
        language_step(learner, ranks[rank].data_rank(), ranks[rank].num_data_ranks());
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        ranks[rank].abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CAPTURE(errors[rank]);
    CHECK(errors[rank].find("shard 5, train step at step 2: no memory") != std::string::npos);
    if (rank != 5) CHECK(errors[rank].find("running for") != std::string::npos);
  }
}

TEST_CASE("the executed pipeline is the schedule, and its idle slots are the formula's") {
  for (const std::string schedule : {"GPipe", "1F1B", "Interleaved1F1B", "ZB-H1", "ZBV"}) {
    CAPTURE(schedule);
    const Layout layout{.degrees = {.pipeline = 2}, .schedule = schedule};
    const auto config = layout_config(layout);
    const int num_stages = 2 * stages_per_rank(schedule, 2), num_microbatches = 6;
    PipelineSchedule executed{schedule, 2, num_microbatches, ranks_of_stages(schedule, 2, 2), {{}, {}}};
    with_mesh(layout.degrees, config, layout_options(layout), learner_weights(config),
              [&](Learner& learner, const RankGroups& groups) {
                language_step(learner, 0, 1);
                executed.actions[static_cast<size_t>(groups.place().pipeline)] = learner.pipeline()->executed();
              });
    CHECK(executed.num_stages() == num_stages);
    const auto timeline = time_schedule(executed);
    const bool is_zero_bubble = schedule.starts_with("ZB");
    CHECK((timeline.idle == std::vector<int64_t>(2, is_zero_bubble ? 1 : 3)));
    CHECK(timeline.length == 3 * num_microbatches * num_stages / 2 + timeline.idle[0]);
  }
}

}  // namespace troupe
