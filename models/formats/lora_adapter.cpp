#include "models/formats/lora_adapter.h"

#include <cmath>
#include <cstring>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "models/formats/gguf_reader.h"
#include "models/formats/hf_folder.h"
#include "models/formats/hf_tensors.h"
#include "models/formats/safetensors.h"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// What the adapter adds to one module.
struct Update {
  Tensor down, up;  // A [r, in], B [out, r] (an embedding's: A [r, vocabulary], B [hidden, r])
  Tensor bias;      // of B, undefined where there is none
  bool embedding = false;
};

struct PatternDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

/// True where the pattern matches the whole module name, or its end after a dot. Hostile patterns run into PCRE2's own
/// limits.
bool matches_end(const std::string& pattern, const std::string& module) {
  const auto whole = "^(?:.*\\.)?(?:" + pattern + ")$";
  int code = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, PatternDeleter> compiled(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), PCRE2_UTF, &code, &offset, nullptr));
  require(compiled != nullptr, "adapter_config.json: \"", pattern, "\" is not a pattern");
  const std::unique_ptr<pcre2_match_data, MatchDeleter> match(
      pcre2_match_data_create_from_pattern(compiled.get(), nullptr));
  const auto result = pcre2_match(compiled.get(), reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0, 0,
                                  match.get(), nullptr);
  require(result >= PCRE2_ERROR_NOMATCH, "adapter_config.json: the pattern \"", pattern, "\" could not be matched");
  return result >= 0;
}

class LoraAdapter final : public CheckpointReader {
 public:
  explicit LoraAdapter(const fs::path& folder)
      : folder_(folder), settings_(read_json_file(folder / "adapter_config.json")) {
    require(settings_.is_object(), folder.string(), ": adapter_config.json is not an object");
    check_settings();
    base_ = open_base();
    file_ = std::make_unique<SafetensorsFile>(folder / "adapter_model.safetensors");
    sort_tensors();
    check_updates();
  }

  const ModelConfig& config() const override { return base_->config(); }
  const std::map<std::string, TensorInfo>& tensors() const override { return base_->tensors(); }
  fs::path path() const override { return folder_; }

  Tensor read(const std::string& name, at::ScalarType dtype) const override {
    const auto replaced = replacements_.find(name);
    const auto update = updates_.find(name.substr(0, name.rfind('.')));
    const bool weight = name.ends_with(".weight");
    const bool changed = update != updates_.end() && (weight || update->second.bias.defined());
    if (!changed && replaced == replacements_.end()) return base_->read(name, dtype);
    auto result = replaced != replacements_.end()
                      ? replaced->second.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)
                      : base_->read(name, at::kFloat);
    if (changed) {
      const auto& part = update->second;
      const auto scaling = scaling_of(update->first, part.down.size(0));
      if (!weight) {
        result.add_(part.bias, scaling);
      } else {
        const auto product = at::matmul(part.up, part.down);
        result.add_(part.embedding ? product.t() : product, scaling);
      }
    }
    return result.to(dtype);
  }

  std::string tokenizer_json() const override { return base_->tokenizer_json(); }
  std::string chat_template() const override { return base_->chat_template(); }
  json tokenizer_config() const override { return base_->tokenizer_config(); }
  std::map<std::string, std::string> text_files() const override { return base_->text_files(); }

 private:
  /// Everything that would make this something else than W + scaling * B A is refused by its key.
  void check_settings() const {
    const auto where = folder_.string() + ": adapter_config.json: ";
    const auto kind = settings_.value("peft_type", json());
    require(kind == "LORA", where, "peft_type = ", kind.dump(), " is not supported; supported is \"LORA\"");
    for (const char* key :
         {"use_dora", "use_qalora", "use_bdlora", "fan_in_fan_out", "layer_replication", "trainable_token_indices",
          "target_parameters", "alora_invocation_tokens", "arrow_config", "use_velora", "monteclora_config"}) {
      const auto value = settings_.find(key);
      const bool off =
          value == settings_.end() || value->is_null() || *value == false || (value->is_structured() && value->empty());
      require(off, where, key, " = ", off ? "" : value->dump(), " is not supported");
    }
    for (const char* key : {"r", "lora_alpha"}) {
      require(settings_.contains(key) && settings_[key].is_number(), where, key, " is missing or no number");
    }
  }

  std::unique_ptr<CheckpointReader> open_base() const {
    const auto name = settings_.value("base_model_name_or_path", json());
    require(name.is_string() && !name.get<std::string>().empty(), folder_.string(),
            ": adapter_config.json: base_model_name_or_path is missing");
    const auto path = (folder_ / name.get<std::string>()).lexically_normal();  // an absolute one stands for itself
    if (path.extension() == ".gguf" && fs::exists(path)) return open_gguf(path);
    require(fs::exists(path / "config.json"), folder_.string(), ": the adapter's base model is not at ", path.string(),
            " (base_model_name_or_path in adapter_config.json: put its folder there)");
    return open_hf_folder(path);
  }

  void sort_tensors() {
    static const std::string wrapper = "base_model.model.";
    for (const auto& [stored_name, entry] : file_->entries()) {
      require(stored_name.starts_with(wrapper), folder_.string(), ": adapter tensor ", stored_name,
              " does not begin with ", wrapper);
      require(is_weight_dtype(entry.dtype), folder_.string(), ": adapter tensor ", stored_name, " has the dtype ",
              entry.dtype, "; weights are floating-point numbers");
      const auto name = stored_name.substr(wrapper.size());
      const auto tensor = file_->tensor(stored_name).to(at::kFloat);
      const auto module_before = [&](const char* suffix) {
        return name.ends_with(suffix) ? name.substr(0, name.size() - std::strlen(suffix)) : "";
      };
      if (auto module = module_before(".lora_A.weight"); !module.empty()) {
        updates_[module].down = tensor;
      } else if (module = module_before(".lora_B.weight"); !module.empty()) {
        updates_[module].up = tensor;
      } else if (module = module_before(".lora_B.bias"); !module.empty()) {
        updates_[module].bias = tensor;
      } else if (module = module_before(".lora_embedding_A"); !module.empty()) {
        updates_[module].down = tensor;
        updates_[module].embedding = true;
      } else if (module = module_before(".lora_embedding_B"); !module.empty()) {
        updates_[module].up = tensor;
      } else {
        // The base layer that PEFT saves beside an adapted head, trained biases, and modules_to_save: they take the
        // base's place.
        auto plain = name;
        if (const auto at = plain.find(".base_layer."); at != std::string::npos)
          plain.erase(at, std::strlen(".base_layer"));
        if (const auto at = plain.find(".modules_to_save."); at != std::string::npos)
          plain.erase(at, std::strlen(".modules_to_save"));
        replacements_[plain] = tensor;
      }
    }
  }

  void check_updates() const {
    const auto& known = base_->tensors();
    const auto shape_of = [&](const std::string& name) {
      const auto found = known.find(name);
      require(found != known.end(), folder_.string(), ": the adapter changes ", name, ", which its base model lacks",
              config().tie_word_embeddings ? " (its head is tied to the embedding)" : "");
      return found->second.shape;
    };
    for (const auto& [name, tensor] : replacements_) {
      require(tensor.sizes() == at::IntArrayRef(shape_of(name)), folder_.string(), ": adapter tensor for ", name,
              " has another shape than the base's");
    }
    for (const auto& [module, part] : updates_) {
      require(part.down.defined() && part.up.defined(), folder_.string(), ": the adapter of ", module,
              " lacks one of A and B");
      auto shape = shape_of(module + ".weight");
      require(!config().tie_word_embeddings || module != "model.embed_tokens", folder_.string(),
              ": an adapter of an embedding that is tied to the head is not supported");
      if (part.embedding) std::reverse(shape.begin(), shape.end());
      require(shape.size() == 2 && part.down.dim() == 2 && part.up.dim() == 2 && part.up.size(0) == shape[0] &&
                  part.down.size(1) == shape[1] && part.up.size(1) == part.down.size(0),
              folder_.string(), ": the adapter of ", module, " does not fit its weight");
      if (part.bias.defined()) {
        require(part.bias.sizes() == at::IntArrayRef(shape_of(module + ".bias")), folder_.string(),
                ": the adapter's bias of ", module, " does not fit");
      }
    }
  }

  /// A module's own value in rank_pattern or alpha_pattern (the key is a pattern for the end of its name), else the
  /// general one.
  double setting_of(const std::string& module, const char* pattern_key, double general) const {
    const auto patterns = settings_.find(pattern_key);
    if (patterns == settings_.end() || !patterns->is_object()) return general;
    for (const auto& [pattern, value] : patterns->items()) {
      require(value.is_number(), folder_.string(), ": adapter_config.json: ", pattern_key, " holds ", value.dump());
      if (matches_end(pattern, module)) return value.get<double>();
    }
    return general;
  }

  double scaling_of(const std::string& module, int64_t rank) const {
    const auto alpha = setting_of(module, "alpha_pattern", settings_["lora_alpha"].get<double>());
    const auto divisor = static_cast<double>(rank);
    return alpha / (settings_.value("use_rslora", json()) == true ? std::sqrt(divisor) : divisor);
  }

  fs::path folder_;
  json settings_;
  std::unique_ptr<CheckpointReader> base_;
  std::unique_ptr<SafetensorsFile> file_;
  std::map<std::string, Update> updates_;       // by module
  std::map<std::string, Tensor> replacements_;  // by tensor
};

}  // namespace

std::unique_ptr<CheckpointReader> open_lora_adapter(const fs::path& folder) {
  return std::make_unique<LoraAdapter>(folder);
}

}  // namespace troupe
