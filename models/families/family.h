// What a family of models says of itself: one folder each with a config.cpp that fills a Family. list.cpp names them
// all; nothing else asks which family a model is of.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/config_fields.h"

namespace troupe {

struct Family {
  std::string name;
  std::vector<std::string> model_types;  // in config.json, beside the name; the first is written
  std::string class_prefix;              // "Llama" of LlamaForCausalLM
  /// What transformers assumes where config.json has no such key.
  nlohmann::json defaults = nlohmann::json::object();
  double rope_theta = 10000;
  /// Where rope_parameters or rope_scaling is absent.
  nlohmann::json rope_scaling = nlohmann::json::object();
  double rotary_share = 0;  // partial_rotary_factor where absent; 0: the whole head is rotated, the key is refused
  /// Layers with LayerRope::kLocal: the key of their theta, and its value where absent (0: that of the main rope).
  std::string local_theta_key = {};
  double local_theta = 0;
  /// Reads what parse_model_config has not read before: layers, names, and every key that the family adds. `fields`
  /// has the defaults filled in; sizes and heads are in `config`.
  void (*read)(const ConfigFields& fields, ModelConfig& config) = nullptr;
  /// Adds to a config.json that write_model_config has filled; may be null.
  void (*write)(const ModelConfig& config, nlohmann::json& json) = nullptr;
};

/// In the order in which they are named to the user.
const std::vector<const Family*>& families();
/// Throws Error listing the known ones.
const Family& find_family(const std::string& model_type);

/// `layer_types` where it is given, checked against `known`; else empty.
std::vector<std::string> read_layer_types(const ConfigFields& fields, int64_t num_layers,
                                          const std::vector<std::string>& known);
/// A list of integers, empty where the key is absent.
std::vector<int64_t> read_integers(const ConfigFields& fields, const char* key);
/// Layers of full attention, and "sliding_attention" ones that see `sliding_window` tokens. Without `layer_types`
/// every layer but each `full_interval`-th slides.
void read_sliding_layers(const ConfigFields& fields, int64_t full_interval, ModelConfig& config);
/// Windows of Qwen's dense families: `sliding_window` counts with `use_sliding_window` alone, and in the layers that
/// `layer_types` names, or from `max_window_layers` on.
void read_flagged_windows(const ConfigFields& fields, ModelConfig& config);
/// `no_rope_layers` (1: with rope), or every `no_rope_layer_interval`-th layer without.
void read_layers_without_rope(const ConfigFields& fields, ModelConfig& config);
/// Biases of q, k and v, and of the output where `of_output`, by the key attention_bias.
void read_attention_bias(const ConfigFields& fields, bool of_output, ModelConfig& config);
/// The activation under `key`; the supported ones are named in the error.
Activation read_activation(const ConfigFields& fields, const char* key);
/// Experts in every layer but those of `mlp_only_layers`, each `decoder_sparse_step`-th (the keys of Qwen's families).
void read_qwen_experts(const ConfigFields& fields, ModelConfig& config);
/// Sigmoid routing with shared experts from layer `first_k_dense_replace` on (the keys of DeepSeek-V3 and GLM-4.5).
void read_deepseek_experts(const ConfigFields& fields, ModelConfig& config);
/// Layers of the gated delta rule and of gated full attention by turns (the keys of Qwen3-Next and Qwen3.5).
void read_delta_hybrid(const ConfigFields& fields, bool joined_projections, ModelConfig& config);
/// Refuses a value other than `supported` of a key that would change the mathematics.
void refuse_unless(const ConfigFields& fields, const char* key, const nlohmann::json& supported);

}  // namespace troupe
