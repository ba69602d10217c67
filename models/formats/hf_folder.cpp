#include "models/formats/hf_folder.h"

#include "base/error.h"
#include "models/formats/hf_tensors.h"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// What travels with a model besides its weights.
constexpr const char* kTextFiles[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.model",
                                      "tiktoken.model",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "generation_config.json"};

class HfFolder final : public CheckpointReader {
 public:
  explicit HfFolder(const fs::path& folder) : folder_(folder) {
    const auto config = read_json_file(folder / "config.json");
    require(config.is_object(), folder.string(), ": config.json is missing or not an object");
    try {
      config_ = parse_model_config(config);
    } catch (const Error& error) {
      fail(folder.string(), ": ", error.what());
    }
    add_generation_stops();
    tensors_ = std::make_unique<HfTensors>(folder, config);
    tensors_->split_stacked_experts(config_);
  }

  const ModelConfig& config() const override { return config_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_->tensors(); }
  fs::path path() const override { return folder_; }
  Tensor read(const std::string& name, at::ScalarType dtype) const override { return tensors_->read(name, dtype); }

  std::string tokenizer_json() const override { return read_text_file(folder_ / "tokenizer.json"); }

  std::string chat_template() const override {
    if (auto text = read_text_file(folder_ / "chat_template.jinja"); !text.empty()) return text;
    for (const char* file : {"tokenizer_config.json", "chat_template.json"}) {
      const auto document = read_json_file(folder_ / file);
      if (!document.is_object() || !document.contains("chat_template")) continue;
      const auto& source = document["chat_template"];
      if (source.is_string()) return source.get<std::string>();
      if (!source.is_array()) continue;
      for (const auto& item : source) {  // several by name: the one called default serves
        if (!item.is_object() || item.value("name", json()) != "default") continue;
        const auto text = item.value("template", json());
        return text.is_string() ? text.get<std::string>() : "";
      }
    }
    return "";
  }

  json tokenizer_config() const override {
    auto result = read_json_file(folder_ / "tokenizer_config.json");
    if (!result.is_object()) result = json::object();
    const auto specials = read_json_file(folder_ / "special_tokens_map.json");
    for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
      if (!result.contains(key) && specials.is_object() && specials.contains(key)) result[key] = specials[key];
      if (!result.contains(key)) continue;
      auto& token = result[key];  // a string, or an object that describes an added token
      if (token.is_object()) token = token.value("content", json());
    }
    return result;
  }

  std::map<std::string, std::string> text_files() const override {
    std::map<std::string, std::string> files;
    for (const char* name : kTextFiles) {
      if (fs::exists(folder_ / name)) files[name] = read_text_file(folder_ / name);
    }
    for (const auto& item : fs::directory_iterator(folder_)) {
      if (item.path().extension() == ".tiktoken") files[item.path().filename()] = read_text_file(item.path());
    }
    return files;
  }

 private:
  /// Chat models often name their turn's end only in generation_config.json; without it generation would run on.
  void add_generation_stops() {
    const auto generation = read_json_file(folder_ / "generation_config.json");
    if (!generation.is_object() || !generation.contains("eos_token_id")) return;
    const auto& stops = generation["eos_token_id"];
    for (const auto& id : stops.is_array() ? stops : json::array({stops})) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0) continue;
      auto& known = config_.eos_token_ids;
      if (std::find(known.begin(), known.end(), id.get<int64_t>()) == known.end()) known.push_back(id.get<int64_t>());
    }
  }

  fs::path folder_;
  ModelConfig config_;
  std::unique_ptr<HfTensors> tensors_;
};

}  // namespace

std::unique_ptr<CheckpointReader> open_hf_folder(const fs::path& folder) { return std::make_unique<HfFolder>(folder); }

}  // namespace troupe
