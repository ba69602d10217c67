// The estimate of a step against steps that run: every transfer's calls and bytes against the ranks' logs, activations
// against what an allocator counts, operations against the other count.
#include "parallel/step_estimate.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "parallel/rank_groups.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"
#include "training/documents.h"
#include "training/flops.h"

namespace troupe {
namespace {

using namespace testing;

constexpr int64_t kRowTokens = 16;

DeviceFigures round_device() { return {"round", 1e12, 1e9, 1e9, 1e9, 1e8, 2, 0.5}; }

LanguageModelBatch estimate_row(uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Document document;
  const auto ids = at::randint(40, {kRowTokens + 1}, generator, at::kLong);
  for (int64_t i = 0; i < kRowTokens; ++i) document.tokens.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
  LanguageModelBatch row;
  append_document(row, document, 0, document.tokens.size());
  return row;
}

struct Case {
  MeshDegrees degrees;
  bool tied = true;
  std::string schedule = "1F1B", recompute = "none", reshard = "default";
  bool sequence_parallel = true;
  bool has_experts = false, has_latent = false;
};

ModelConfig with_latent_attention(ModelConfig config) {
  config.latent = {.query_rank = 24, .key_value_rank = 16, .plain_dim = 12, .rotary_dim = 8, .value_dim = 14};
  config.rotary_dim = 8;
  config.num_key_value_heads = config.num_attention_heads;
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (auto& layer : config.layers) layer.mixer = Mixer::kLatentAttention;
  return config;
}

/// Three layers with experts behind a dense one, a shared expert, and a bias that only chooses.
ModelConfig with_experts(ModelConfig config) {
  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t layer = 1; layer < config.layers.size(); ++layer) config.layers[layer].has_experts = true;
  auto& moe = config.moe;
  moe.num_experts = 8;
  moe.num_experts_per_token = 2;
  moe.intermediate_size = 20;
  moe.shared_intermediate_size = 12;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = moe.normalise = true;
  return config;
}

Collectives* group_of(const RankGroups& groups, const std::string& name) {
  if (name == "shards") return &groups.shards();
  if (name == "replicas") return groups.replicas();
  if (name == "tensor") return groups.tensor();
  if (name == "context") return groups.context();
  if (name == "pipeline") return groups.pipeline();
  if (name == "experts") return groups.experts();
  if (name == "expert_shards") return &groups.expert_shards();
  return groups.tied();
}

void check_case(const Case& test) {
  auto config = learner_config(test.tied);
  config.num_hidden_layers = 4;
  if (test.has_experts) config = with_experts(config);
  if (test.has_latent) config = with_latent_attention(config);
  auto options = learner_options();
  options.num_tokens_per_microbatch = kRowTokens;
  options.activation_checkpoint = test.recompute;
  options.parallel.sequence_parallel = test.sequence_parallel;
  options.parallel.pipeline.schedule = test.schedule;
  options.parallel.sharding.parameter_dtype = at::kBFloat16;
  options.parallel.sharding.reshard_after_forward = test.reshard;
  constexpr int kNumMicrobatches = 4;
  std::vector<LanguageModelBatch> rows;
  for (uint64_t r = 0; r < kNumMicrobatches; ++r) rows.push_back(estimate_row(r));
  const auto what = concat(describe(test.degrees), " ", test.schedule, " ", test.recompute, " ", test.reshard);
  CAPTURE(what);
  std::atomic<int64_t> from_experts{0}, expected_from_experts{0};  // of all ranks: a rank's part depends on the routing
  with_mesh(test.degrees, config, options, learner_weights(config), [&](Learner& learner, const RankGroups& groups) {
    for (const char* name : {"shards", "replicas", "tensor", "context", "pipeline", "tied", "experts", "expert_shards"})
      if (auto* group = group_of(groups, name)) group->log().clear();
    learner.train_language_model(rows);
    auto parallel = options.parallel;
    parallel.recompute = parse_recompute_mode(test.recompute);
    const auto estimate = estimate_rank(config, test.degrees, groups.place(), parallel,
                                        {kRowTokens, kRowTokens, kNumMicrobatches}, round_device());
    for (const auto& expected : estimate.transfers) {
      if (expected.label == "softmax") continue;  // a row's last token predicts nothing; the estimate counts all
      int64_t calls = 0, bytes = 0;
      for (const auto& record : group_of(groups, expected.group)->log().records()) {
        if (record.operation != expected.operation || record.label.find(expected.label) == std::string::npos) continue;
        ++calls;
        bytes += record.bytes;
      }
      if (expected.label == "from experts") {
        from_experts += bytes;
        expected_from_experts += expected.bytes;
        bytes = expected.bytes;
      }
      require(calls == expected.calls && bytes == expected.bytes, what, ", rank ", groups.world().rank(), ": ",
              expected.group, " ", expected.operation, " ", expected.label, ": ", calls, " calls and ", bytes,
              " bytes, the estimate says ", expected.calls, " and ", expected.bytes);
    }
    int64_t shard_bytes = 0;
    for (const auto& shard : learner.model().shards()) shard_bytes += shard.parameter.nbytes();
    require(shard_bytes == estimate.memory.parameters, what, ": shards of ", shard_bytes, " bytes, the estimate says ",
            estimate.memory.parameters);
  });
  CHECK(from_experts == expected_from_experts);
}

/// Counts the bytes that live, around the allocator that is there.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, 100); }
  c10::DataPtr allocate(size_t num_bytes) override {
    auto inner = inner_->allocate(num_bytes);
    void* data = inner.get();
    live_bytes_ += static_cast<int64_t>(num_bytes);
    return {data, new Block{std::move(inner), static_cast<int64_t>(num_bytes), this}, &release, at::kCPU};
  }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    default_copy_data(target, source, count);
  }
  int64_t live_bytes() const { return live_bytes_; }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t num_bytes;
    CountingAllocator* owner;
  };
  static void release(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->owner->live_bytes_ -= block->num_bytes;
  }
  c10::Allocator* inner_;
  std::atomic<int64_t> live_bytes_{0};
};

}  // namespace

TEST_CASE("an estimate's transfers are those that the ranks make") {
  for (const bool tied : {true, false}) {
    check_case({{.shard = 2}, tied});
    check_case({{.shard = 2}, tied, "1F1B", "full", "always"});
    check_case({{.replicate = 2, .shard = 2}, tied, "1F1B", "none", "never"});
    check_case({{.tensor = 2}, tied});
    check_case({{.shard = 2, .tensor = 2}, tied, "1F1B", "selective"});
    check_case({{.tensor = 2}, tied, "1F1B", "full", "default", false});
    check_case({{.context = 2}, tied, "1F1B", "full"});
    check_case({{.context = 4}, tied});
    for (const char* schedule : {"GPipe", "1F1B", "ZB-H1"}) check_case({{.pipeline = 2, .shard = 2}, tied, schedule});
    check_case({{.pipeline = 2, .tensor = 2}, tied, "Interleaved1F1B", "full"});
    check_case({{.pipeline = 2, .context = 2}, tied, "ZBV"});
  }
}

TEST_CASE("an estimate's transfers of experts are those that the ranks make") {
  const auto check = [](const MeshDegrees& degrees, const char* recompute, const char* schedule = "1F1B") {
    check_case({.degrees = degrees, .schedule = schedule, .recompute = recompute, .has_experts = true});
  };
  check({.shard = 2}, "none");
  check({.shard = 2, .expert = 2}, "none");
  check({.shard = 4, .expert = 2}, "full");
  check({.replicate = 2, .shard = 2, .expert = 2}, "selective");
  check({.context = 2, .expert = 2}, "full");
  check({.shard = 2, .tensor = 2, .expert = 2}, "full");
  check({.tensor = 2}, "none");
  check({.pipeline = 2, .shard = 2, .expert = 2}, "full", "GPipe");
  check_case({.degrees = {.context = 2, .expert = 2}, .recompute = "full", .has_experts = true, .has_latent = true});
  check_case({.degrees = {.tensor = 2, .expert = 2}, .has_experts = true, .has_latent = true});
}

TEST_CASE("an estimate's activations are those that a forward keeps") {
  const auto live_bytes = [](int64_t num_layers, bool has_head_norms, bool has_experts, bool has_latent) {
    auto config = learner_config(false);
    config.hidden_size = 64;
    config.head_dim = 16;
    config.intermediate_size = 160;
    config.num_hidden_layers = num_layers;
    config.query_key_norm = has_head_norms;
    if (has_experts) config = with_experts(config);
    if (has_latent) config = with_latent_attention(config);
    Decoder decoder(config);
    TensorMap leaves;
    for (const auto& [name, weight] : learner_weights(config)) leaves[name] = weight.clone().set_requires_grad(true);
    decoder.bind_all(leaves);
    constexpr int32_t kTokens = 96;
    const auto tokens = at::arange(kTokens, at::kLong).remainder(40);
    CountingAllocator allocator;
    const auto hidden = decoder.forward(tokens, PackedLayout{{{0, kTokens, -1}}, kTokens});
    const auto bytes = allocator.live_bytes();
    const auto estimated = layer_activation_bytes(ParallelPlan(config), num_layers - 1, kTokens, 4);
    return std::pair(bytes, estimated);
  };
  for (const int form : {0, 1, 2, 4, 6}) {
    CAPTURE(form);
    const bool has_head_norms = (form & 1) != 0, has_experts = (form & 2) != 0, has_latent = (form & 4) != 0;
    const auto [two, estimated] = live_bytes(2, has_head_norms, has_experts, has_latent);
    const auto [three, same] = live_bytes(3, has_head_norms, has_experts, has_latent);
    CHECK(estimated == same);
    CHECK(static_cast<double>(three - two) == doctest::Approx(static_cast<double>(estimated)).epsilon(0.02));
  }
}

TEST_CASE("an estimate's operations are those that throughput counts") {
  const auto with_mixture = with_experts(learner_config(false));
  {
    const StepShape shape{64, 64, 3};
    const double expected = 3 * training_flops(with_mixture, PackedLayout{{{0, 64, -1}}, 64}, 64);
    for (const MeshDegrees& degrees : std::vector<MeshDegrees>{{.shard = 2, .expert = 2}, {.tensor = 2, .expert = 2}}) {
      const auto estimate = estimate_step(with_mixture, degrees, {}, shape, round_device());
      CHECK(estimate.model_flops == doctest::Approx(expected * degrees.num_data_ranks()));
    }
  }
  const auto config = learner_config(false);
  const StepShape shape{64, 64, 3};
  const PackedLayout layout{{{0, 64, -1}}, 64};
  const double expected = 3 * training_flops(config, layout, 64);
  for (const MeshDegrees& degrees :
       std::vector<MeshDegrees>{{}, {.tensor = 2}, {.pipeline = 2}, {.pipeline = 2, .shard = 2, .tensor = 2}}) {
    CAPTURE(describe(degrees));
    const auto estimate = estimate_step(config, degrees, {}, shape, round_device());
    CHECK(estimate.model_flops == doctest::Approx(expected * degrees.num_data_ranks()));
    CHECK(estimate.tokens == 3 * 64 * degrees.num_data_ranks());
    CHECK(estimate.step_s >= estimate.overlapped_step_s);
    CHECK(estimate.overlapped_step_s > estimate.slowest.compute_s);
  }
  // Half the peak, nothing else in the way: the model's FLOP utilisation is near one half.
  auto device = round_device();
  device.memory_bytes_per_s = 1e18;
  const auto alone = estimate_step(config, {}, {}, shape, device);
  CHECK(alone.mfu(device, 1, alone.step_s) == doctest::Approx(0.5).epsilon(0.01));
}

TEST_CASE("a pipeline's idle share and kept activations are the schedule's") {
  const auto config = learner_config(false);
  ParallelOptions options;
  const auto estimate = [&](const char* schedule, int num_microbatches) {
    options.pipeline.schedule = schedule;
    return estimate_step(config, {.pipeline = 2}, options, {64, 64, num_microbatches}, round_device());
  };
  CHECK(estimate("1F1B", 8).bubble == doctest::Approx(3.0 / (3 * 8 + 3)));
  CHECK(estimate("GPipe", 8).bubble == doctest::Approx(3.0 / (3 * 8 + 3)));
  CHECK(estimate("ZB-H1", 8).bubble == doctest::Approx(1.0 / (3 * 8 + 1)));
  const auto kept = [&](const char* schedule) {
    options.pipeline.schedule = schedule;
    return estimate_rank(config, {.pipeline = 2}, {}, options, {64, 64, 8}, round_device()).memory.activations;
  };
  CHECK(kept("GPipe") == 4 * kept("1F1B"));
}

TEST_CASE("unknown devices are refused, the known ones named") {
  CHECK(known_device("H100").peak_flops == 989e12);
  CHECK_THROWS_WITH_AS(known_device("abacus"), doctest::Contains("H100"), UsageError);
}

}  // namespace troupe
