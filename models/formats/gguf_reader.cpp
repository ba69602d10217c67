#include "models/formats/gguf_reader.h"

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "models/formats/dequantise.h"
#include "models/formats/gguf_architecture.h"
#include "models/formats/gguf_tokenizer.h"
#include "models/formats/load_buffer.h"

namespace troupe {
namespace {

/// Llama 3's rotary scaling is stored as its result, one divisor per frequency; the configuration needs its cause.
RopeConfig rope_from_divisors(const RopeConfig& plain, const std::vector<float>& divisors, int64_t head_dim,
                              const std::string& path) {
  RopeConfig rope = plain;
  rope.kind = "llama3";
  rope.factor = *std::max_element(divisors.begin(), divisors.end());
  rope.low_freq_factor = 1;  // what every published Llama 3 has
  rope.high_freq_factor = 4;
  rope.original_max_position_embeddings = 8192;
  const auto frequencies = rope_inverse_frequencies(plain, head_dim);
  const auto scaled = rope_inverse_frequencies(rope, head_dim);
  bool equal = divisors.size() == frequencies.size();
  for (size_t i = 0; equal && i < divisors.size(); ++i) {
    equal = std::abs(frequencies[i] / scaled[i] - divisors[i]) <= 1e-3 * divisors[i];
  }
  require(equal, path, ": rope_freqs.weight is not the scaling of Llama 3, and no other is supported");
  return rope;
}

/// One file of a model; large models come as several.
struct GgufPart {
  explicit GgufPart(const std::filesystem::path& path)
      : file(path), header(parse_gguf_header(file.bytes(), path.string())) {}
  MappedFile file;
  GgufHeader header;
};

/// Stem, number and count of a name like "model-00002-of-00005.gguf"; count 0 where it is no such name.
struct PartName {
  std::string stem;
  int64_t number = 0, count = 0;
};

PartName parse_part_name(const std::string& file_name) {
  constexpr size_t kTail = sizeof("-00001-of-00005.gguf") - 1;
  if (file_name.size() <= kTail) return {};
  const auto tail = file_name.substr(file_name.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !tail.ends_with(".gguf")) return {};
  const auto first = tail.substr(1, 5), second = tail.substr(10, 5);
  if ((first + second).find_first_not_of("0123456789") != std::string::npos) return {};
  return {file_name.substr(0, file_name.size() - kTail), std::stoll(first), std::stoll(second)};
}

std::string part_file_name(const std::string& stem, int64_t number, int64_t count) {
  char tail[32];
  std::snprintf(tail, sizeof(tail), "-%05d-of-%05d.gguf", static_cast<int>(number), static_cast<int>(count));
  return stem + tail;
}

class GgufReader final : public CheckpointReader {
 public:
  explicit GgufReader(const std::filesystem::path& path) : path_(first_gguf_part(path)) {
    parts_.push_back(std::make_unique<GgufPart>(path_));
    architecture_ = &find_gguf_architecture(header());
    open_other_parts();
    for (const auto& part : parts_) add_tensors(part->header);
    int64_t num_tensors = 0;
    for (const auto& part : parts_) num_tensors += static_cast<int64_t>(part->header.tensors.size());
    const auto num_expected = header().integer("split.tensors.count", num_tensors);
    require(num_expected == num_tensors, path_.string(), ": its parts hold ", num_tensors,
            " tensors, split.tensors.count says ", num_expected);
    make_config();
  }

  const ModelConfig& config() const override { return config_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  std::filesystem::path path() const override { return path_; }
  std::string tokenizer_json() const override { return gguf_tokenizer_json(header()); }
  nlohmann::json tokenizer_config() const override { return gguf_tokenizer_config(header()); }
  std::string chat_template() const override { return header().text("tokenizer.chat_template", ""); }

  std::map<std::string, std::string> text_files() const override {
    std::map<std::string, std::string> files;
    const auto tokenizer = tokenizer_json();
    if (tokenizer.empty()) return files;
    files["tokenizer.json"] = tokenizer;
    auto settings = tokenizer_config();
    settings.erase("chat_template");
    files["tokenizer_config.json"] = settings.dump(2) + "\n";
    if (const auto source = chat_template(); !source.empty()) files["chat_template.jinja"] = source;
    nlohmann::json generation = {{"_from_model_config", true}, {"eos_token_id", config_.eos_token_ids}};
    if (config_.bos_token_id >= 0) generation["bos_token_id"] = config_.bos_token_id;
    if (header().contains("tokenizer.ggml.padding_token_id")) {
      generation["pad_token_id"] = header().integer("tokenizer.ggml.padding_token_id");
    }
    files["generation_config.json"] = generation.dump(2) + "\n";
    return files;
  }

  Tensor read(const std::string& name, at::ScalarType dtype) const override {
    const auto found = stored_.find(name);
    require(found != stored_.end(), path_.string(), ": no tensor \"", name, "\"");
    const bool is_shifted = architecture_->norm_offset != 0 && name.ends_with("norm.weight");
    auto result = unpack(*found->second, is_shifted ? at::kFloat : dtype);
    if (is_shifted) result = result.sub_(architecture_->norm_offset).to(dtype);
    MappedFile::release_pages(std::as_bytes(std::span(found->second->bytes)));
    const bool is_query = name.find(".self_attn.q_proj.") != std::string::npos;
    const bool is_key = name.find(".self_attn.k_proj.") != std::string::npos;
    if (!architecture_->pairs_heads || !(is_query || is_key)) return result;
    const auto heads = is_query ? config_.num_attention_heads : config_.num_key_value_heads;
    require(result.size(0) == heads * config_.head_dim, path_.string(), ": tensor \"", name, "\" has ", result.size(0),
            " rows, not ", heads, " heads of ", config_.head_dim);
    return result.index_select(0, at::tensor(stored_rotary_rows(heads, config_.head_dim), at::kLong));
  }

 private:
  static Tensor unpack(const GgufTensor& tensor, at::ScalarType dtype) {
    const auto& type = *tensor.type;
    const bool direct = dtype == at::kFloat;
    auto result = empty_for_loading(tensor.shape, dtype);
    const auto num_blocks = static_cast<int64_t>(tensor.bytes.size() / type.block_bytes);
    const int64_t chunk_blocks = std::max<int64_t>(1, 16384 / type.block_size);
    at::parallel_for(0, num_blocks, chunk_blocks, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(direct ? 0 : static_cast<size_t>(chunk_blocks * type.block_size));
      for (int64_t block = begin; block < end; block += chunk_blocks) {
        const auto count = std::min(chunk_blocks, end - block);
        const auto* source = tensor.bytes.data() + block * type.block_bytes;
        const auto first = block * type.block_size;
        if (direct) {
          dequantise_gguf(type.id, source, static_cast<size_t>(count), result.mutable_data_ptr<float>() + first);
          continue;
        }
        dequantise_gguf(type.id, source, static_cast<size_t>(count), buffer.data());
        const auto numbers = at::from_blob(buffer.data(), {count * type.block_size}, at::kFloat);
        result.view({-1}).narrow(0, first, count * type.block_size).copy_(numbers);
      }
    });
    return result;
  }

  const GgufHeader& header() const { return parts_.front()->header; }

  void open_other_parts() {
    const auto count = header().integer("split.count", 1);
    if (count <= 1) return;
    const auto name = parse_part_name(path_.filename());
    require(header().integer("split.no", 0) == 0, path_.string(), ": not the first part of a split GGUF (split.no)");
    require(name.number == 1 && name.count == count, path_.string(), ": split.count = ", count,
            ", but the file is not named ...", part_file_name("", 1, std::min<int64_t>(count, 99999)));
    for (int64_t number = 2; number <= count; ++number) {
      const auto part = path_.parent_path() / part_file_name(name.stem, number, count);
      require(std::filesystem::exists(part), part.string(), ": this part of the split GGUF is missing");
      parts_.push_back(std::make_unique<GgufPart>(part));
      const auto& other = parts_.back()->header;
      require(other.integer("split.no", -1) == number - 1 && other.integer("split.count", -1) == count, part.string(),
              ": not part ", number, " of ", count, " (split.no, split.count)");
    }
  }

  void add_tensors(const GgufHeader& header) {
    for (const auto& [name, tensor] : header.tensors) {
      if (name == "rope_freqs.weight") {  // taken into the configuration
        rope_divisors_ = &tensor;
        continue;
      }
      const auto own_name = architecture_->hugging_face_name(name);
      const auto& known_name = own_name.empty() ? name : own_name;
      require(!stored_.contains(known_name), path_.string(), ": tensor \"", name, "\" is given twice");
      tensors_[known_name] = {tensor.shape, tensor.type->name};
      stored_[known_name] = &tensor;
    }
  }

  /// A key of the architecture's own metadata.
  std::string name_of(const std::string& key) const { return architecture_->name + "." + key; }
  int64_t architecture_integer(const std::string& key, std::optional<int64_t> fallback = std::nullopt) const {
    return header().integer(name_of(key), fallback);
  }

  void make_config() {
    require(
        tensors_.contains("model.embed_tokens.weight") && tensors_.at("model.embed_tokens.weight").shape.size() == 2,
        path_.string(), ": no tensor token_embd.weight");
    require(architecture_integer("expert_count", 0) == 0, path_.string(), ": ", architecture_->name,
            ".expert_count: experts are not supported");
    const auto heads = architecture_integer("attention.head_count");
    const auto hidden = architecture_integer("embedding_length");
    require(heads > 0, path_.string(), ": ", architecture_->name, ".attention.head_count = ", heads);
    const auto head_dim = architecture_integer("attention.key_length", hidden / heads);
    require(architecture_integer("attention.value_length", head_dim) == head_dim, path_.string(), ": ",
            architecture_->name, ".attention.value_length differs from key_length, which is not supported");
    require(architecture_integer("rope.dimension_count", head_dim) == head_dim, path_.string(), ": ",
            architecture_->name, ".rope.dimension_count differs from the head size, which is not supported");
    nlohmann::json json = {{"model_type", architecture_->model_type},
                           {"vocab_size", tensors_.at("model.embed_tokens.weight").shape.front()},
                           {"hidden_size", hidden},
                           {"intermediate_size", architecture_integer("feed_forward_length")},
                           {"num_hidden_layers", architecture_integer("block_count")},
                           {"num_attention_heads", heads},
                           {"num_key_value_heads", architecture_integer("attention.head_count_kv", heads)},
                           {"head_dim", head_dim},
                           {"hidden_act", "silu"},
                           {"max_position_embeddings", architecture_integer("context_length")},
                           {"rms_norm_eps", header().number(name_of("attention.layer_norm_rms_epsilon"))},
                           {"tie_word_embeddings", !tensors_.contains("lm_head.weight")}};
    const bool has_query_bias = tensors_.contains("model.layers.0.self_attn.q_proj.bias");
    const bool has_output_bias = tensors_.contains("model.layers.0.self_attn.o_proj.bias");
    if (architecture_->says_attention_bias) json["attention_bias"] = has_query_bias && has_output_bias;
    if (architecture_->says_mlp_bias) json["mlp_bias"] = tensors_.contains("model.layers.0.mlp.gate_proj.bias");
    for (const auto& [key, source] : {std::pair("bos_token_id", "tokenizer.ggml.bos_token_id"),
                                      std::pair("eos_token_id", "tokenizer.ggml.eos_token_id"),
                                      std::pair("pad_token_id", "tokenizer.ggml.padding_token_id")}) {
      if (header().contains(source)) json[key] = header().integer(source);
    }
    json["rope_theta"] = header().number(name_of("rope.freq_base"), 10000.0);
    const auto scaling = header().text(name_of("rope.scaling.type"), "none");
    if (scaling != "none") {
      json["rope_scaling"] = {{"rope_type", scaling}, {"factor", header().number(name_of("rope.scaling.factor"), 1.0)}};
      const auto original = architecture_integer("rope.scaling.original_context_length", 0);
      if (original > 0) json["rope_scaling"]["original_max_position_embeddings"] = original;
    }
    if (architecture_->add_to_config != nullptr) architecture_->add_to_config(header(), json);
    try {
      config_ = parse_model_config(json);
    } catch (const Error& error) {
      fail(path_.string(), ": ", error.what());
    }
    if (rope_divisors_ != nullptr) {
      const auto values = unpack(*rope_divisors_, at::kFloat);
      const auto* first = values.const_data_ptr<float>();
      config_.rope = rope_from_divisors(config_.rope, {first, first + values.numel()}, head_dim, path_.string());
    }
    config_.source = write_model_config(config_, "float32");
  }

  std::filesystem::path path_;
  std::vector<std::unique_ptr<GgufPart>> parts_;  // the first one holds the metadata
  const GgufTensor* rope_divisors_ = nullptr;
  const GgufArchitecture* architecture_ = nullptr;
  ModelConfig config_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, const GgufTensor*> stored_;
};

}  // namespace

std::vector<int64_t> stored_rotary_rows(int64_t num_heads, int64_t head_dim) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(num_heads * head_dim));
  const auto half = head_dim / 2;
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t row = 0; row < head_dim; ++row) rows.push_back(head * head_dim + row % half * 2 + row / half);
  }
  return rows;
}

std::filesystem::path first_gguf_part(const std::filesystem::path& path) {
  const auto name = parse_part_name(path.filename());
  if (name.count < 1 || name.number < 1) return path;
  return path.parent_path() / part_file_name(name.stem, 1, name.count);
}

std::unique_ptr<CheckpointReader> open_gguf(const std::filesystem::path& path) {
  return std::make_unique<GgufReader>(path);
}

}  // namespace troupe
