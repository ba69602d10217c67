// What a decoder-only language model is, independent of where its description was read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/layer_config.h"

namespace troupe {

/// Rotary position embedding and its scaling; `kind` as in Hugging Face's `rope_type`.
struct RopeConfig {
  std::string kind = "default";  // default, linear, dynamic, yarn, longrope, llama3; others are refused when read
  double theta = 10000;
  double factor = 1;
  double low_freq_factor = 1;   // llama3
  double high_freq_factor = 4;  // llama3
  int64_t original_max_position_embeddings =
      0;                                    // llama3, yarn, longrope; of dynamic the model's max_position_embeddings
  double beta_fast = 32, beta_slow = 1;     // yarn: rotations over the original length that bound the ramp
  bool truncate = true;                     // yarn: bounds of the ramp are rounded outwards
  double attention_factor = 1;              // yarn, longrope: cosines and sines are multiplied by it
  double magnitude = 0, magnitude_all = 0;  // yarn: mscale and mscale_all_dim; 0 where not given
  std::vector<double> short_factor,
      long_factor;  // longrope: divisors [head_dim / 2] within and beyond the original length

  bool operator==(const RopeConfig&) const = default;

  /// Sequences of up to this many tokens share one set of frequencies; longer ones of "dynamic" and "longrope" differ.
  int64_t constant_length() const;
};

/// A decoder-only language model. Names follow Hugging Face's config.json; what is not in every family is off by
/// default.
struct ModelConfig {
  std::string model_type;  // the family, as in config.json
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of a dense MLP
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // q_proj, k_proj, v_proj
  bool attention_output_bias = false;  // o_proj
  bool mlp_bias = false;
  bool query_key_norm = false;   // RMSNorm of q and k before rope, over each head or
  bool norm_over_heads = false;  // over all of them together (olmo3)
  bool unit_query_key = false;   // RMSNorm without weights of each head of q and k, after rope, where there is rope
  bool attention_gate = false;   // q_proj holds a gate beside each head: sigmoid(gate) times the head's output
  bool attention_sinks = false;  // a learned logit a head takes part in the softmax and gives nothing
  double attention_scale = 0;    // of the scores; 0: 1 / sqrt(head size)
  double temperature_scale = 0;  // layers without rope: q *= 1 + scale * log(1 + floor((position + 1) / floor))
  double temperature_floor = 8192;
  int64_t rotary_dim = 0;         // the first dimensions of a head that rope turns; 0: all
  bool rope_interleaved = false;  // rope turns neighbours instead of one dimension of each half
  bool norm_from_one = false;     // RMSNorm weights are stored as their difference from 1
  double embedding_scale = 1;
  double logit_softcap = 0;  // > 0: logits are softcap * tanh(logits / softcap)
  Activation activation = Activation::kSilu;
  MoeConfig moe;
  LatentConfig latent;
  DeltaConfig delta;
  ParameterNames names;
  std::vector<LayerConfig> layers;  // empty: LayerConfig{} for every layer
  int64_t num_extra_layers = 0;     // declared for multi-token prediction; weights after the last layer are left alone
  int64_t num_labels = 0;  // > 0: a sequence-classification head `score.weight` [num_labels, hidden_size], no lm_head
  RopeConfig rope, local_rope;
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
  nlohmann::json
      source;  // config.json as read (of a nested one, its text_config); export starts from it, so nothing is lost

  int64_t num_parameters() const;  // tied weights once
  const LayerConfig& layer(int64_t index) const;
  /// By layer; empty where no layer has one.
  std::vector<int64_t> attention_windows() const;
  const RopeConfig& rope_of(const LayerConfig& layer) const {
    return layer.rope == LayerRope::kLocal ? local_rope : rope;
  }
  int64_t rotated_dim() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  double softmax_scale() const;
  bool has(Mixer mixer) const;
  bool has_experts() const;
};

/// Families that parse_model_config knows.
const std::vector<std::string>& known_model_types();

/// Reads both published forms (`rope_parameters` and `rope_theta` + `rope_scaling`), also inside a multi-modal folder's
/// `text_config`. A key that is absent has the value that transformers gives it. Throws Error naming the key that is
/// missing, has the wrong type, or changes the mathematics and is not supported; an unknown model_type lists the known
/// ones.
ModelConfig parse_model_config(const nlohmann::json& config);
/// config.json that transformers 4 and 5 read (both forms of rope and dtype); starts from `source`. dtype: "float32",
/// ...
nlohmann::json write_model_config(const ModelConfig& config, const std::string& dtype);

/// One parameter of a network: checkpoint name, shape, and the unit that owns it (see models/decoder.h).
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t unit = 0;
  bool is_trained = true;  // false: a constant, to which no gradient comes; fp32 beside narrower weights
  /// The experts [begin, end) whose weights these are, along dimension 0 where the checkpoint stacks them; else 0, 0.
  int64_t experts_begin = 0, experts_end = 0;
  bool is_of_experts() const { return experts_end > experts_begin; }
};

/// Every parameter in a fixed order (embedding; per layer input norm, mixer, MLP norm, MLP or experts; final norm;
/// head), tied ones once. What is multiplied together stands together. Units: 0 = embedding, 1..L = layers, L+1 = final
/// norm and untied head.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

/// Inverse frequencies [head_dim/2] after scaling (float64) of a sequence of `length` tokens (0: one that is not longer
/// than constant_length). Su et al. 2021; "llama3" as in Meta's Llama 3.1 release, "yarn" Peng et al. 2023, "longrope"
/// Ding et al. 2024, "dynamic" raises theta with the length.
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t length = 0);

}  // namespace troupe
