// Every family over the layouts that docs/models.md allows it, against one rank, in float64; the others are refused
// with the reason. Also forms that no fixture has.
#include <cstdlib>
#include <fstream>

#include "models/formats/checkpoint_reader.h"
#include "tests/doctest.h"
#include "tests/models/family_folders.h"
#include "tests/training/layout_steps.h"
#include "training/log_probs.h"

namespace troupe {
namespace {

using namespace testing;

struct FamilyCase {
  const char* name;
  const char* no_tensor = nullptr;   // what the refusal of tensor ranks names; null: allowed
  const char* no_context = nullptr;  // of context ranks
  bool has_experts = false;
};

const FamilyCase kFamilies[] = {
    {"smollm3"},
    {"olmo3", "norms over all heads", "sliding window"},
    {"gemma3", nullptr, "sliding window"},
    {"mixtral", nullptr, nullptr, true},
    {"qwen3_moe", nullptr, nullptr, true},
    {"gpt_oss", nullptr, "sliding window", true},
    {"glm4_moe", nullptr, nullptr, true},
    {"deepseek_v3", nullptr, nullptr, true},
    {"llama4", nullptr, "chunked attention", true},
    {"qwen3_next", "delta rule", "recurrence", true},
    {"qwen3_5", "delta rule", "recurrence"},
};

LearnerOptions family_options(const std::string& recompute = "none") {
  auto options = learner_options();
  options.parallel.sharding.parameter_dtype = at::kDouble;
  options.num_tokens_per_microbatch = 40;
  options.activation_checkpoint = recompute;
  return options;
}

std::vector<LanguageModelBatch> family_rows() { return ragged_rows(4, 6, 150, 5); }

}  // namespace

TEST_CASE("every family trains as on one rank over the layouts it allows, and the others are refused by reason") {
  CHECK(std::size(kFamilies) == family_folders().size());
  for (const auto& family : kFamilies) {
    CAPTURE(family.name);
    const auto reader = open_checkpoint(family_fixtures() / family.name);
    const auto& config = reader->config();
    const auto weights = load_weights(*reader, at::kFloat);
    std::vector<Step> reference;
    with_one_rank(config, family_options(), weights,
                  [&](Learner& learner) { reference = take_steps(learner, weights, family_rows()); });
    CHECK(reference[0].norm > 0);
    CHECK(reference[1].norm > 0);
    const auto check = [&](const MeshDegrees& degrees, const std::string& recompute) {
      const auto what = concat(family.name, " over ", describe(degrees), ", recompute ", recompute);
      CHECK_NOTHROW(with_mesh(degrees, config, family_options(recompute), weights,
                              [&](Learner& learner, const RankGroups& groups) {
                                require_equal_steps(learner, groups, weights, family_rows(), reference, what);
                              }));
    };
    const auto refuse = [&](const MeshDegrees& degrees, const char* reason) {
      CHECK_THROWS_WITH_AS(with_mesh(degrees, config, family_options(), weights, [](Learner&, const RankGroups&) {}),
                           doctest::Contains(reason), UsageError);
    };
    check({.shard = 2}, "full");
    check({.pipeline = 2}, "selective");
    if (family.no_tensor == nullptr) {
      check({.tensor = 2}, "none");
    } else {
      refuse({.tensor = 2}, family.no_tensor);
    }
    if (family.no_context == nullptr) {
      check({.context = 2}, "none");
    } else {
      refuse({.context = 2}, family.no_context);
    }
    if (!family.has_experts) {
      refuse({.shard = 2, .expert = 2}, "no experts");
      continue;
    }
    check({.shard = 2, .expert = 2}, "full");
    check({.pipeline = 2, .shard = 2, .expert = 2}, "selective");
    if (family.no_tensor == nullptr) check({.tensor = 2, .expert = 2}, "none");
    if (std::getenv("TROUPE_SOAK") == nullptr) continue;
    check({.shard = 4, .expert = 2}, "none");
    check({.replicate = 2, .shard = 2, .expert = 2}, "full");
    check({.pipeline = 2, .shard = 4, .expert = 2}, "full");
    if (family.no_context == nullptr) check({.shard = 2, .context = 2, .expert = 2}, "full");
    if (family.no_tensor == nullptr) check({.pipeline = 2, .shard = 2, .tensor = 2, .expert = 2}, "full");
  }
}

namespace {

/// A fixture's configuration with changes.
ModelConfig changed(const char* folder, const nlohmann::json& changes) {
  std::ifstream file(family_fixtures() / folder / "config.json");
  auto config = nlohmann::json::parse(file);
  config.update(changes);
  return parse_model_config(config);
}

void check_over(const MeshDegrees& degrees, const ModelConfig& config) {
  const auto weights = learner_weights(config);
  std::vector<Step> reference;
  with_one_rank(config, family_options(), weights,
                [&](Learner& learner) { reference = take_steps(learner, weights, family_rows()); });
  CHECK(reference[0].norm > 0);
  CHECK_NOTHROW(with_mesh(degrees, config, family_options(), weights, [&](Learner& learner, const RankGroups& groups) {
    require_equal_steps(learner, groups, weights, family_rows(), reference,
                        concat(config.model_type, " over ", describe(degrees)));
  }));
}

const nlohmann::json kDeltaExperts = {{"model_type", "qwen3_5_moe_text"},
                                      {"num_experts", 6},
                                      {"num_experts_per_tok", 2},
                                      {"moe_intermediate_size", 32},
                                      {"shared_expert_intermediate_size", 24}};

}  // namespace

TEST_CASE("forms that no fixture has train over ranks as on one") {
  check_over({.shard = 2}, changed("deepseek_v3", {{"q_lora_rank", nullptr}}));
  check_over({.pipeline = 2}, changed("deepseek_v3", {{"q_lora_rank", nullptr}}));
  check_over({.tensor = 2, .expert = 2}, changed("deepseek_v3", {{"q_lora_rank", nullptr}}));
  check_over({.shard = 2, .tensor = 4}, changed("deepseek_v3", {{"attention_bias", true}}));
  check_over({.tensor = 2}, changed("gemma3", {{"final_logit_softcapping", 5.0}}));
  check_over({.shard = 2}, changed("qwen3_5", kDeltaExperts));
  check_over({.shard = 2, .expert = 2}, changed("qwen3_5", kDeltaExperts));
  const auto options = family_options();
  const auto config = changed("qwen3_5", kDeltaExperts);
  CHECK_THROWS_AS(
      with_mesh({.tensor = 2}, config, options, learner_weights(config), [](Learner&, const RankGroups&) {}),
      UsageError);
}

TEST_CASE("gradients through soft-capped logits are those of finite differences") {
  const auto config = changed("gemma3", {{"final_logit_softcapping", 5.0}});
  TensorMap weights;
  for (auto& [name, weight] : learner_weights(config)) weights[name] = weight.to(at::kDouble).requires_grad_();
  at::manual_seed(2);
  const Tensor tokens = at::randint(150, {24}, at::kLong), targets = at::randint(150, {24}, at::kLong);
  const PackedLayout layout{{{0, 14, -1}, {14, 10, -1}}, 24};
  Decoder decoder(config);
  decoder.bind_all(weights);
  const auto loss_of = [&] {
    LogProbOptions options;
    options.logit_softcap = config.logit_softcap;
    options.num_chunk_rows = 7;
    return -log_probs(decoder.forward(tokens, layout), decoder.head_weight(), targets, options).log_prob_T.sum();
  };
  const Tensor loss = loss_of();
  {
    const at::NoGradGuard no_grad;
    const Tensor logits = decoder.logits(decoder.forward(tokens, layout));
    const Tensor wanted = -at::log_softmax(logits, 1).gather(1, targets.unsqueeze(1)).sum();
    CHECK(loss.item<double>() == doctest::Approx(wanted.item<double>()).epsilon(1e-12));
    CHECK(logits.abs().max().item<double>() > 2);  // far enough out for the cap to bend
  }
  loss.backward();
  const at::NoGradGuard no_grad;
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                           "model.layers.2.mlp.down_proj.weight", "model.norm.weight"}) {
    CAPTURE(name);
    auto& weight = weights.at(name);
    const Tensor direction = at::randn_like(weight), before = weight.detach().clone();
    constexpr double kStep = 1e-5;
    const auto loss_at = [&](double step) {
      weight.copy_(before + direction * step);
      return loss_of().item<double>();
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    weight.copy_(before);
    const double gradient = (weight.grad() * direction).sum().item<double>();
    CHECK(gradient == doctest::Approx(slope).epsilon(1e-5));
  }
}

TEST_CASE("what is not trained stays in fp32 under bf16 compute, and in the snapshots that leave a learner") {
  const auto reader = open_checkpoint(family_fixtures() / "deepseek_v3");
  const auto& config = reader->config();
  auto weights = load_weights(*reader, at::kFloat);
  // Values that bf16 does not have.
  for (const auto& spec : parameter_specs(config))
    if (!spec.is_trained) weights[spec.name] = 1 + at::arange(spec.shape[0], at::kFloat) * 1e-4;
  auto options = family_options();
  options.parallel.sharding.parameter_dtype = at::kBFloat16;
  const MeshDegrees layouts[] = {
      {}, {.shard = 2}, {.pipeline = 2}, {.replicate = 2, .shard = 2}, {.shard = 2, .expert = 2}};
  for (const auto& degrees : layouts) {
    const auto what = describe(degrees);
    CHECK_NOTHROW(with_mesh(degrees, config, options, weights, [&](Learner& learner, const RankGroups&) {
      for (int step = 0; step < 2; ++step) {
        for (const auto& snapshot : {learner.gather_weights(at::kBFloat16), learner.borrow_weights(at::kBFloat16)}) {
          for (const auto& spec : parameter_specs(config)) {
            const auto& tensor = snapshot.at(spec.name);
            const auto wanted = spec.is_trained ? at::kBFloat16 : at::kFloat;
            require(tensor.scalar_type() == wanted, what, ": ", spec.name, " is ", c10::toString(tensor.scalar_type()));
            require(spec.is_trained || at::equal(tensor, weights.at(spec.name)), what, ": ", spec.name, " changed");
          }
        }
        const auto metrics = learner.train_policy(learner_batch(2, 4));
        require(std::isfinite(metrics.at("loss/mean")) && metrics.at("grad_norm") > 0, what, ": no step was made");
        const auto& decoder = learner.model().decoder();
        for (const auto& spec : decoder.specs()) {
          if (spec.is_trained || !learner.model().plan().holds(spec.unit)) continue;
          const auto& bound = decoder.parameter(spec.name);  // what the network computes with
          require(bound.scalar_type() == at::kFloat && at::equal(bound, weights.at(spec.name)), what, ": ", spec.name,
                  " is bound with other values");
        }
      }
    }));
  }
}

}  // namespace troupe
