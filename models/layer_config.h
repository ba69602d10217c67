// What the layers of a decoder are made of: the words in which a family (models/families) describes itself. The
// training network, the generation engine and the list of parameters follow this description and know no family.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace troupe {

/// What mixes tokens: attention; attention over compressed keys and values (DeepSeek-AI 2024, "DeepSeek-V2"); or the
/// gated delta rule, a recurrence (Yang et al. 2024).
enum class Mixer { kAttention, kLatentAttention, kDeltaNet };
/// Which rotary embedding turns a layer's queries and keys: ModelConfig::rope, ModelConfig::local_rope, or none.
enum class LayerRope { kMain, kLocal, kNone };

struct LayerConfig {
  Mixer mixer = Mixer::kAttention;
  LayerRope rope = LayerRope::kMain;
  int64_t window = 0;  // a token sees this many tokens, itself the last of them; 0: all before it
  int64_t chunk = 0;   // a token sees only those of its chunk of this many positions; 0: all before it
  bool has_experts = false;

  auto operator<=>(const LayerConfig&) const = default;
};

/// act(gate) * up in a gated MLP.
enum class Activation { kSilu, kGelu, kGeluTanh };

/// How a token's experts are chosen and weighed.
enum class RouterScore {
  kSoftmax,          // softmax over all experts, then the largest (Mixtral, Qwen)
  kSoftmaxOfChosen,  // the largest logits, then softmax over those (gpt-oss)
  kSigmoid,          // sigmoid of each, the largest after a bias that only chooses (DeepSeek-V3)
  kSigmoidInput,     // sigmoid of each; it weighs the expert's input instead of its output (Llama 4)
};

/// How the checkpoint holds the experts' weights.
enum class ExpertForm {
  kSeparate,  // experts.<i>.gate_proj.weight, ... [out, in]
  kStacked,   // experts.gate_up_proj and experts.down_proj [experts, in, out]
};

/// A mixture of experts in place of the MLP.
struct MoeConfig {
  int64_t num_experts = 0;  // 0: the model has no such layers
  int64_t num_experts_per_token = 0;
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of the expert that every token goes to; 0: none
  bool shared_gate = false;              // a sigmoid weighs the shared expert
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;                       // the chosen scores are divided by their sum
  double scale = 1;                             // and then multiplied by this
  bool choice_bias = false;                     // a bias by expert is added to the scores for the choice alone
  int64_t num_groups = 1, num_kept_groups = 1;  // only experts of the best groups can be chosen
  bool router_bias = false;
  ExpertForm form = ExpertForm::kSeparate;
  bool expert_bias = false;
  bool gate_up_take_turns = false;  // columns of gate and up alternate
  /// > 0: (clamp(up, -limit, limit) + 1) * g * sigmoid(swish_factor * g), g = min(gate, limit), instead of the MLP's.
  double clamp_limit = 0, swish_factor = 1;
  /// Experts [begin, end) whose weights this network holds, of all that its router knows; end 0: all. The others are
  /// reached through models/exchange.h.
  int64_t held_begin = 0, held_end = 0;
  int64_t num_held() const { return (held_end > 0 ? held_end : num_experts) - held_begin; }
};

/// Sizes of latent attention.
struct LatentConfig {
  int64_t query_rank = 0;  // 0: queries are projected at once
  int64_t key_value_rank = 0;
  int64_t plain_dim = 0;   // of a head's query and key without rope
  int64_t rotary_dim = 0;  // with rope; the key's is shared by all heads
  int64_t value_dim = 0;
  double norm_eps = 1e-6;
  int64_t query_dim() const { return plain_dim + rotary_dim; }
};

/// Sizes of a gated delta net.
struct DeltaConfig {
  int64_t num_key_heads = 0, num_value_heads = 0;
  int64_t key_dim = 0, value_dim = 0;  // of a head
  int64_t kernel_size = 0;             // of the convolution over queries, keys and values
  bool joined_projections = false;     // in_proj_qkvz and in_proj_ba, grouped by key head, instead of four projections
  int64_t keys_size() const { return num_key_heads * key_dim; }
  int64_t values_size() const { return num_value_heads * value_dim; }
  int64_t convolved_size() const { return 2 * keys_size() + values_size(); }
};

/// Names of a layer's parameters where families differ; "" where a family has no such norm.
struct ParameterNames {
  std::string mixer_input_norm = "input_layernorm", mixer_output_norm;
  std::string mlp_input_norm = "post_attention_layernorm", mlp_output_norm;
  std::string mlp = "mlp";  // also what stands before an expert layer's parameters
  std::string experts = "mlp", router = "gate", shared_expert = "shared_expert";
  std::string expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
};

}  // namespace troupe
