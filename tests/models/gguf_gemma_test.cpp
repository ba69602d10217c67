// Gemma 3 from GGUF: a file made of the fixture's weights gives the folder's network and numbers; the published 270M
// file, where TROUPE_GEMMA3_GGUF names it, the ids of transformers (tests/rollout/gemma_gguf_test.cpp).
#include "models/decoder.h"
#include "models/formats/checkpoint_reader.h"
#include "tests/doctest.h"
#include "tests/models/format_helpers.h"
#include "tests/models/tiny_model.h"

using namespace troupe;
using namespace troupe::test;

namespace {

const std::pair<const char*, const char*> kLayerNames[] = {{"attn_norm", "input_layernorm"},
                                                           {"attn_q", "self_attn.q_proj"},
                                                           {"attn_k", "self_attn.k_proj"},
                                                           {"attn_v", "self_attn.v_proj"},
                                                           {"attn_output", "self_attn.o_proj"},
                                                           {"attn_q_norm", "self_attn.q_norm"},
                                                           {"attn_k_norm", "self_attn.k_norm"},
                                                           {"post_attention_norm", "post_attention_layernorm"},
                                                           {"ffn_norm", "pre_feedforward_layernorm"},
                                                           {"ffn_gate", "mlp.gate_proj"},
                                                           {"ffn_up", "mlp.up_proj"},
                                                           {"ffn_down", "mlp.down_proj"},
                                                           {"post_ffw_norm", "post_feedforward_layernorm"}};

/// The fixture's tensors as llama.cpp's converter writes them: norms with 1 added.
std::string gguf_of(const TensorMap& weights, const ModelConfig& config) {
  std::vector<std::pair<std::string, Tensor>> tensors = {{"token_embd.weight", weights.at("model.embed_tokens.weight")},
                                                         {"output_norm.weight", weights.at("model.norm.weight") + 1}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    for (const auto& [own, name] : kLayerNames) {
      Tensor tensor = weights.at(concat("model.layers.", i, ".", name, ".weight"));
      if (std::string_view(own).ends_with("norm")) tensor = tensor + 1;
      tensors.emplace_back(concat("blk.", i, ".", own, ".weight"), tensor.contiguous());
    }
  }
  GgufBuilder builder(tensors.size(), 12);
  const auto size = [&](const char* key, int64_t value) {
    builder.key_uint32(std::string("gemma3.") + key, static_cast<uint32_t>(value));
  };
  builder.key_text("general.architecture", "gemma3");
  size("block_count", config.num_hidden_layers);
  size("context_length", config.max_position_embeddings);
  size("embedding_length", config.hidden_size);
  size("feed_forward_length", config.intermediate_size);
  size("attention.head_count", config.num_attention_heads);
  size("attention.head_count_kv", config.num_key_value_heads);
  size("attention.key_length", config.head_dim);
  size("attention.value_length", config.head_dim);
  size("attention.sliding_window", 8);
  builder.key_float("gemma3.attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  builder.key_float("gemma3.rope.freq_base", 1e6f);
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    std::vector<uint64_t> dimensions(tensor.sizes().rbegin(), tensor.sizes().rend());
    builder.tensor(name, dimensions, 0, offset);
    offset += (tensor.nbytes() + 31) / 32 * 32;
  }
  for (const auto& [name, tensor] : tensors) {
    builder.align().raw({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  return builder.bytes();
}

}  // namespace

TEST_CASE("a gemma3 GGUF is the network of the Hugging Face folder") {
  const auto original = open_checkpoint(fixture_models() / "gemma3");
  const auto weights = load_weights(*original, at::kFloat);
  const TemporaryFolder folder;
  write_file_synced(folder / "gemma.gguf", gguf_of(weights, original->config()));
  const auto reader = open_checkpoint(folder / "gemma.gguf");
  const auto& config = reader->config();
  CHECK(config.model_type == original->config().model_type);
  CHECK(config.tie_word_embeddings);
  CHECK(config.activation == Activation::kGeluTanh);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.local_rope.theta == 1e4);
  CHECK(config.softmax_scale() == doctest::Approx(1 / std::sqrt(static_cast<double>(config.head_dim))));
  CHECK((config.attention_windows() == std::vector<int64_t>(static_cast<size_t>(config.num_hidden_layers), 8)));
  const auto read = load_weights(*reader, at::kFloat);
  CHECK(read.size() == weights.size());
  for (const auto& [name, weight] : weights) {
    CAPTURE(name);
    CHECK((read.at(name) - weight).abs().max().item<float>() < 2e-7);
  }
  // Norms narrowed once: not the sum with 1, which would lose their last bits.
  const auto narrow = load_weights(*reader, at::kBFloat16).at("model.norm.weight");
  CHECK(at::equal(narrow, read.at("model.norm.weight").to(at::kBFloat16)));
}

TEST_CASE("an architecture that is not known prints the known ones") {
  const TemporaryFolder folder;
  GgufBuilder builder(0, 1);
  write_file_synced(folder / "x.gguf", builder.key_text("general.architecture", "rwkv").bytes());
  CHECK(contains(error_of([&] { open_checkpoint(folder / "x.gguf"); }),
                 "\"rwkv\" is not supported; supported are llama, qwen2, qwen3, gemma3"));
}
