// gpt-oss (OpenAI 2025): a learned sink in every head, windows in every second layer, clamped gated experts with
// biases.
#include "base/error.h"
#include "models/families/family.h"

namespace troupe {
namespace {

void read(const ConfigFields& fields, ModelConfig& config) {
  read_attention_bias(fields, true, config);
  config.attention_sinks = true;
  read_sliding_layers(fields, 2, config);
  auto& moe = config.moe;
  const bool is_short = fields.find("num_local_experts") != nullptr;
  moe.num_experts = fields.integer(is_short ? "num_local_experts" : "num_experts", 128, 1, 1 << 16);
  moe.num_experts_per_token = fields.integer("num_experts_per_tok", 4, 1, moe.num_experts);
  moe.intermediate_size = config.intermediate_size;
  moe.score = RouterScore::kSoftmaxOfChosen;
  moe.router_bias = moe.expert_bias = moe.gate_up_take_turns = true;
  moe.form = ExpertForm::kStacked;
  moe.clamp_limit = fields.number("swiglu_limit", 7.0);
  require(moe.clamp_limit > 0, "config.json: swiglu_limit = ", moe.clamp_limit, " must be above 0");
  moe.swish_factor = 1.702;
  config.names.router = "router";
  for (auto& layer : config.layers) layer.has_experts = true;
}

}  // namespace

const Family& gpt_oss_family() {
  static const Family family = {.name = "gpt_oss",
                                .model_types = {"gpt_oss"},
                                .class_prefix = "GptOss",
                                .defaults = {{"max_position_embeddings", 131072},
                                             {"num_key_value_heads", 8},
                                             {"head_dim", 64},
                                             {"rms_norm_eps", 1e-5},
                                             {"sliding_window", 128},
                                             {"attention_bias", true}},
                                .rope_theta = 150000,
                                .rope_scaling = {{"rope_type", "yarn"},
                                                 {"factor", 32.0},
                                                 {"beta_fast", 32.0},
                                                 {"beta_slow", 1.0},
                                                 {"truncate", false},
                                                 {"original_max_position_embeddings", 4096}},
                                .read = read};
  return family;
}

}  // namespace troupe
