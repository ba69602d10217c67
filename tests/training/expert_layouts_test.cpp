// Experts spread over ranks, with every other form of parallelism, against one rank: losses, gradients and gradient
// norms of pre-training and GRPO steps; what a rank holds and sends; checkpoints between layouts. A short table here,
// the whole one with TROUPE_SOAK=1.
#include <cstdlib>

#include "tests/doctest.h"
#include "tests/training/layout_steps.h"

namespace troupe {
namespace {

using namespace testing;

constexpr int64_t kNumExperts = 8, kNumChoices = 2;

/// Four layers, the first of them dense. Plain: separate experts, chosen by softmax. With extras: stacked experts with
/// biases, a router with a bias, a gated shared expert, an untied head, sizes that divide by nothing.
ModelConfig expert_config(bool has_extras) {
  auto config = config_with_experts(4, kNumExperts, !has_extras);
  auto& moe = config.moe;
  moe.intermediate_size = 24;
  if (!has_extras) return config;
  config.vocab_size = 43;
  config.intermediate_size = 37;
  config.attention_bias = config.query_key_norm = true;
  moe.form = ExpertForm::kStacked;
  moe.intermediate_size = 11;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = true;
  moe.router_bias = moe.expert_bias = moe.gate_up_take_turns = true;
  moe.shared_intermediate_size = 13;
  moe.shared_gate = true;
  return config;
}

struct Layout {
  MeshDegrees degrees;
  bool has_extras = false;
  std::string recompute = "none", schedule = "1F1B";
  std::string reshard = "default";

  std::string describe() const {
    return concat(troupe::describe(degrees), " ", schedule, ", recompute ", recompute, ", reshard ", reshard,
                  has_extras ? ", extras" : "");
  }
};

LearnerOptions expert_options(const Layout& layout = {}) {
  auto options = learner_options();
  options.parallel.sharding.parameter_dtype = at::kDouble;
  options.parallel.sharding.reshard_after_forward = layout.reshard;
  options.num_tokens_per_microbatch = 24;
  options.activation_checkpoint = layout.recompute;
  options.parallel.pipeline.schedule = layout.schedule;
  return options;
}

std::vector<LanguageModelBatch> expert_rows() { return ragged_rows(6, 2); }

std::vector<Step> one_rank(const ModelConfig& config, const TensorMap& weights) {
  std::vector<Step> reference;
  with_one_rank(config, expert_options(), weights,
                [&](Learner& learner) { reference = take_steps(learner, weights, expert_rows()); });
  return reference;
}

void check_layout(const Layout& layout, const ModelConfig& config, const TensorMap& weights,
                  const std::vector<Step>& expected) {
  CHECK_NOTHROW(with_mesh(layout.degrees, config, expert_options(layout), weights,
                          [&](Learner& learner, const RankGroups& groups) {
                            require_equal_steps(learner, groups, weights, expert_rows(), expected, layout.describe());
                          }));
}

std::vector<Layout> table() {
  std::vector<Layout> layouts = {
      {.degrees = {.shard = 2, .expert = 2}},
      {.degrees = {.shard = 2, .expert = 2}, .has_extras = true, .recompute = "full", .reshard = "always"},
      {.degrees = {.shard = 4, .expert = 2}, .has_extras = true, .recompute = "selective"},
      {.degrees = {.replicate = 2, .shard = 2, .expert = 2}},
      {.degrees = {.pipeline = 2, .shard = 2, .expert = 2}, .has_extras = true, .recompute = "full"},
      {.degrees = {.pipeline = 2, .shard = 2, .expert = 2}, .schedule = "ZBV"},
      {.degrees = {.context = 2, .expert = 2}, .has_extras = true},
      {.degrees = {.tensor = 2}},
      {.degrees = {.shard = 2, .tensor = 2, .expert = 4}, .has_extras = true, .recompute = "full"},
  };
  if (std::getenv("TROUPE_SOAK") == nullptr) return layouts;
  // Every degree of 2, every pair and triple of them, with every expert degree that they allow.
  for (int bits = 1; bits < 32; ++bits) {
    if (__builtin_popcount(static_cast<unsigned>(bits)) > 3) continue;
    const auto degree = [&](int bit) { return (bits >> bit) & 1 ? 2 : 1; };
    MeshDegrees degrees{degree(0), degree(1), degree(2), degree(3), degree(4)};
    for (degrees.expert = 1; degrees.expert <= degrees.num_expert_ranks(); degrees.expert *= 2) {
      for (const bool has_extras : {false, true})
        layouts.push_back({.degrees = degrees, .has_extras = has_extras, .recompute = has_extras ? "full" : "none"});
      if (degrees.pipeline == 1) continue;
      for (const char* schedule : {"GPipe", "Interleaved1F1B", "ZB-H1", "ZBV"})
        layouts.push_back({.degrees = degrees, .has_extras = true, .schedule = schedule});
    }
  }
  layouts.push_back({.degrees = {.shard = 4, .expert = 4}, .reshard = "never"});
  layouts.push_back({.degrees = {.context = 8, .expert = 8}, .has_extras = true});
  layouts.push_back({.degrees = {.pipeline = 2, .context = 4, .expert = 4}, .schedule = "ZBV"});
  return layouts;
}

/// Calls and bytes of what was moved under a label.
std::pair<int64_t, int64_t> moved(Collectives& group, const std::string& label) {
  std::pair<int64_t, int64_t> calls_and_bytes{0, 0};
  for (const auto& record : group.log().records()) {
    if (record.label != label) continue;
    ++calls_and_bytes.first;
    calls_and_bytes.second += record.bytes;
  }
  return calls_and_bytes;
}

}  // namespace

TEST_CASE("every layout with spread experts trains as one rank does: losses, gradients, gradient norms") {
  for (const bool has_extras : {false, true}) {
    const auto config = expert_config(has_extras);
    const auto weights = learner_weights(config);
    const auto reference = one_rank(config, weights);
    CHECK(reference[0].norm > 0);
    CHECK(reference[1].norm > 0);
    for (const auto& layout : table())
      if (layout.has_extras == has_extras) check_layout(layout, config, weights, reference);
  }
}

TEST_CASE("a rank whose experts get no token trains as on one rank; what travels is what the routing says") {
  const auto config = expert_config(true);
  const auto weights = one_sided_weights(config, 1, 3, 2);  // both on the first of two expert ranks
  const auto reference = one_rank(config, weights);
  for (const auto& [name, gradient] : reference[0].gradients)
    if (name.ends_with("experts.down_proj")) CHECK(gradient[0].abs().max().item<float>() == 0);
  check_layout({.degrees = {.shard = 2, .expert = 2}, .has_extras = true}, config, weights, reference);
  check_layout({.degrees = {.shard = 2, .expert = 2}, .has_extras = true, .recompute = "full"}, config, weights,
               reference);
  const auto rows = expert_rows();
  const auto check = [&](Learner& learner, const RankGroups& groups) {
    auto& group = *groups.experts();
    const int rank = group.rank();
    group.log().clear();
    learner.train_language_model({rows[static_cast<size_t>(2 + rank)]});
    const int64_t own = rows[static_cast<size_t>(2 + rank)].layout.num_tokens;
    const int64_t all = rows[2].layout.num_tokens + rows[3].layout.num_tokens, layers = 3, row = 8 * config.hidden_size;
    const int64_t sent = own * kNumChoices, received = rank == 0 ? all * kNumChoices : 0;
    const auto expect = [&](const char* label, int64_t calls, int64_t bytes) {
      const auto got = moved(group, label);
      require(got == std::pair(layers * calls, layers * calls * bytes), "rank ", rank, ", ", label, ": ", got.first,
              " calls, ", got.second, " bytes");
    };
    // Forward once, and once again in backward.
    expect("rows of experts", 2, kNumExperts * 8);
    expect("tokens to experts", 2, sent * row);
    expect("weights to experts", 2, sent * 8);
    expect("results from experts", 2, received * row);
    expect("result gradients to experts", 1, sent * row);
    expect("token gradients from experts", 1, received * row);
    expect("weight gradients from experts", 1, received * 8);
  };
  const Layout layout{.degrees = {.shard = 2, .expert = 2}, .recompute = "full"};
  CHECK_NOTHROW(with_mesh(layout.degrees, config, expert_options(layout), weights, check));
}

TEST_CASE("a rank holds and gathers its experts alone") {
  const auto config = expert_config(false);
  int64_t num_dense = 0, num_of_experts = 0, of_dense_layer = 0, of_layer = 0, of_its_experts = 0;
  for (const auto& spec : parameter_specs(config)) {
    const auto numel = c10::multiply_integers(spec.shape);
    (spec.is_of_experts() ? num_of_experts : num_dense) += numel;
    if (spec.unit == 1) of_dense_layer += numel;
    if (spec.unit == 2) (spec.is_of_experts() ? of_its_experts : of_layer) += numel;
  }
  const auto weights = learner_weights(config);
  for (const int experts : {1, 2, 4}) {
    CAPTURE(experts);
    const Layout layout{.degrees = {.shard = 4, .expert = experts}};
    auto options = expert_options(layout);
    options.parallel.sharding.parameter_dtype = at::kFloat;
    options.parallel.sharding.reshard_after_forward = "always";
    const auto check = [&](Learner& learner, const RankGroups& groups) {
      int64_t held = 0;
      for (const auto& shard : learner.model().shards()) held += shard.parameter.numel();
      const int64_t padding = 16 * 4;
      require(held >= (num_dense + num_of_experts) / 4 && held <= (num_dense + num_of_experts) / 4 + padding,
              "held: ", held);
      learner.model().reset_peak_gathered_bytes();
      groups.expert_shards().log().clear();
      learner.train_language_model(share_of(expert_rows(), groups.data_rank(), groups.num_data_ranks()));
      // One layer with its experts at a time; where every rank has experts of its own, they are never gathered at all
      // but are what lies in the shards.
      const int64_t its_experts = experts == 4 ? 0 : of_its_experts / experts;
      const auto peak = learner.model().peak_gathered_bytes() / 4 - (experts == 4 ? num_of_experts / 4 : 0);
      const auto wanted = std::max(of_dense_layer, of_layer + its_experts);
      require(peak >= wanted && peak <= wanted + padding, "gathered at most ", peak, ", the formula says ", wanted);
      const auto gathers = groups.expert_shards().log().totals("all_gather");
      if (experts == 4) require(gathers.first == 0, "experts that one rank holds were gathered");
      if (experts == 2) {
        int64_t calls = 2 * 3 * 2;  // forward and backward, of three layers, of two micro-batches
        require(gathers == std::pair(calls, calls * of_its_experts / 2 * 4), "experts gathered ", gathers.first,
                " times, ", gathers.second, " bytes");
      }
    };
    CHECK_NOTHROW(with_mesh(layout.degrees, config, options, weights, check));
  }
}

TEST_CASE("any layout of experts loads any layout's checkpoint, weights and optimizer states bit for bit") {
  for (const bool has_extras : {false, true}) {
    const std::vector<MeshDegrees> layouts = {{},
                                              {.shard = 2, .expert = 2},
                                              {.pipeline = 2, .shard = 2, .expert = 2},
                                              {.shard = 4, .expert = 2},
                                              {.shard = 2, .tensor = 2, .expert = 4},
                                              {.replicate = 2, .context = 2, .expert = 2},
                                              {}};
    CHECK_NOTHROW(require_checkpoints_to_fit(layouts, expert_config(has_extras), expert_options(), expert_rows(),
                                             "troupe_experts"));
  }
}

TEST_CASE("experts that cannot be spread so are refused, the arithmetic told") {
  const auto refuse = [](const MeshDegrees& degrees, const ModelConfig& config, const char* why) {
    CHECK_THROWS_WITH_AS(check_parallel(config, degrees, {}), doctest::Contains(why), UsageError);
  };
  refuse({.shard = 2, .expert = 2}, learner_config(), "llama has no experts to spread");
  refuse({.shard = 3, .expert = 3}, expert_config(false), "the model's 8 experts do not divide by it (8 = 3 * 2 + 2)");
  CHECK_THROWS_WITH_AS(
      check_mesh({.shard = 2, .context = 2, .expert = 3}, 64),
      doctest::Contains("expert_parallel_degree = 3 does not divide shard 2 * context 2 * tensor 1 = 4"), UsageError);
  CHECK_THROWS_AS(check_mesh({.expert = 2}, 64), UsageError);
  CHECK_THROWS_AS(check_mesh({.expert = 0}, 64), UsageError);
  ParallelOptions whole_tokens;
  whole_tokens.sequence_parallel = false;
  CHECK_THROWS_WITH_AS(check_parallel(expert_config(false), {.tensor = 2}, whole_tokens),
                       doctest::Contains("needs parallelism.enable_sequence_parallel"), UsageError);
}

}  // namespace troupe
