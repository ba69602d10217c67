// Gemma 3 from GGUF: a file of a model's weights gives the network and the logits of the model's folder; the published
// 270M file, where TROUPE_GEMMA3_GGUF names it, the ids of transformers (tests/rollout/gemma_gguf_test.cpp).
#include <fstream>
#include <optional>

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

/// A model's tensors as llama.cpp's converter writes them: norms with 1 added.
std::string gguf_of(const TensorMap& weights, const ModelConfig& config, std::optional<float> softcap) {
  std::vector<std::pair<std::string, Tensor>> tensors = {{"token_embd.weight", weights.at("model.embed_tokens.weight")},
                                                         {"output_norm.weight", weights.at("model.norm.weight") + 1}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    for (const auto& [own, name] : kLayerNames) {
      Tensor tensor = weights.at(concat("model.layers.", i, ".", name, ".weight"));
      if (std::string_view(own).ends_with("norm")) tensor = tensor + 1;
      tensors.emplace_back(concat("blk.", i, ".", own, ".weight"), tensor.contiguous());
    }
  }
  GgufBuilder builder(tensors.size(), softcap ? 13 : 12);
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
  if (softcap) builder.key_float("gemma3.final_logit_softcapping", *softcap);
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
  // What GGUF files leave out: every sixth layer is global, scores are scaled by the size of a head.
  std::ifstream file(fixture_models() / "gemma3" / "config.json");
  auto json = nlohmann::json::parse(file);
  json.erase("layer_types");
  json["num_hidden_layers"] = 7;
  json["query_pre_attn_scalar"] = json.at("head_dim");
  for (const auto softcap : {std::optional<float>(), std::optional<float>(0.0f), std::optional<float>(5.0f)}) {
    CAPTURE(softcap.value_or(-1));
    json["final_logit_softcapping"] = softcap.value_or(0) > 0 ? nlohmann::json(*softcap) : nlohmann::json();
    const auto wanted = parse_model_config(json);
    CHECK((wanted.attention_windows() == std::vector<int64_t>{8, 8, 8, 8, 8, 0, 8}));
    const TemporaryFolder folder;
    auto weights = testing::random_weights(wanted, at::kFloat);
    for (auto& [name, weight] : weights) weight = weight.detach();
    write_hf_folder(folder / "model", wanted, weights, at::kFloat, nullptr);
    write_file_synced(folder / "gemma.gguf", gguf_of(weights, wanted, softcap));
    const auto original = open_checkpoint(folder / "model"), reader = open_checkpoint(folder / "gemma.gguf");
    const auto read = load_weights(*reader, at::kFloat);
    CHECK(read.size() == weights.size());
    for (const auto& [name, weight] : weights) {
      CAPTURE(name);
      CHECK((read.at(name) - weight).abs().max().item<float>() < 1e-6);
    }
    const auto check_config = [&](const ModelConfig& config) {
      CHECK(config.model_type == wanted.model_type);
      CHECK(config.tie_word_embeddings);
      CHECK((config.activation == wanted.activation));
      CHECK((config.layers == wanted.layers));
      CHECK((config.rope == wanted.rope));
      CHECK((config.local_rope == wanted.local_rope));
      CHECK(config.softmax_scale() == doctest::Approx(wanted.softmax_scale()));
      CHECK(config.logit_softcap == doctest::Approx(wanted.logit_softcap));
      CHECK(config.embedding_scale == wanted.embedding_scale);
    };
    check_config(reader->config());
    const auto written = write_model_config(reader->config(), "float32");
    check_config(parse_model_config(written));
    // transformers would divide by a cap of 0.
    CHECK(written.at("final_logit_softcapping").is_null() == (softcap.value_or(0) == 0));
    at::manual_seed(6);
    const Tensor tokens = at::randint(160, {40}, at::kLong);  // well beyond the windows
    const auto logits_of = [&](const CheckpointReader& source) {
      Decoder decoder(source.config());
      decoder.bind_all(load_weights(source, at::kFloat));
      return decoder.logits(decoder.forward(tokens, PackedLayout{{{0, 40, -1}}, 40}));
    };
    CHECK(testing::relative_difference(logits_of(*reader), logits_of(*original)) < 1e-4);
    // Norms narrowed once: not the sum with 1, which would lose their last bits.
    const auto narrow = load_weights(*reader, at::kBFloat16).at("model.norm.weight");
    CHECK(at::equal(narrow, read.at("model.norm.weight").to(at::kBFloat16)));
  }
}

TEST_CASE("an architecture that is not known prints the known ones") {
  const TemporaryFolder folder;
  GgufBuilder builder(0, 1);
  write_file_synced(folder / "x.gguf", builder.key_text("general.architecture", "rwkv").bytes());
  CHECK(contains(error_of([&] { open_checkpoint(folder / "x.gguf"); }),
                 "\"rwkv\" is not supported; supported are llama, qwen2, qwen3, gemma3"));
}
