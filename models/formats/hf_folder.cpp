#include "models/formats/hf_folder.h"

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "models/formats/safetensors.h"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uintmax_t kLargestJsonBytes = uintmax_t{256} << 20;

/// What travels with a model besides its weights.
constexpr const char* kTextFiles[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.model",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "generation_config.json"};

/// File's text, "" where there is none.
std::string read_text(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  const auto size = fs::file_size(path, error);
  require(!error && size <= kLargestJsonBytes, path.string(), ": ",
          error ? error.message() : "too large for what it should be");
  return read_file(path);
}

json read_json(const fs::path& path) {
  const auto text = read_text(path);
  if (text.empty()) return {};
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    fail(path.string(), ": not valid JSON at byte ", error.byte);
  }
}

class HfFolder final : public CheckpointReader {
 public:
  explicit HfFolder(const fs::path& folder) : folder_(folder) {
    const auto config = read_json(folder / "config.json");
    require(config.is_object(), folder.string(), ": config.json is missing or not an object");
    try {
      config_ = parse_model_config(config);
    } catch (const Error& error) {
      fail(folder.string(), ": ", error.what());
    }
    add_generation_stops();
    if (fs::exists(folder / "model.safetensors.index.json")) {
      open_shards();
    } else {
      require(fs::exists(folder / "model.safetensors"), folder.string(),
              ": neither model.safetensors nor model.safetensors.index.json is there");
      add_file(folder / "model.safetensors");
    }
  }

  const ModelConfig& config() const override { return config_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  fs::path path() const override { return folder_; }

  Tensor read(const std::string& name, at::ScalarType dtype) const override {
    const auto found = file_of_.find(name);
    require(found != file_of_.end(), folder_.string(), ": no tensor \"", name, "\"");
    const auto mapped = found->second->tensor(name);
    auto result = at::empty(mapped.sizes(), at::TensorOptions().dtype(dtype));
    result.copy_(mapped);
    return result;
  }

  std::string tokenizer_json() const override { return read_text(folder_ / "tokenizer.json"); }

  std::string chat_template() const override {
    if (auto text = read_text(folder_ / "chat_template.jinja"); !text.empty()) return text;
    for (const char* file : {"tokenizer_config.json", "chat_template.json"}) {
      const auto document = read_json(folder_ / file);
      if (!document.is_object() || !document.contains("chat_template")) continue;
      const auto& source = document["chat_template"];
      if (source.is_string()) return source.get<std::string>();
      if (!source.is_array()) continue;
      for (const auto& item : source) {  // several by name: the one called default serves
        if (item.is_object() && item.value("name", "") == "default") return item.value("template", "");
      }
    }
    return "";
  }

  json tokenizer_config() const override {
    auto result = read_json(folder_ / "tokenizer_config.json");
    if (!result.is_object()) result = json::object();
    const auto specials = read_json(folder_ / "special_tokens_map.json");
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
      if (fs::exists(folder_ / name)) files[name] = read_text(folder_ / name);
    }
    return files;
  }

 private:
  /// Chat models often name their turn's end only in generation_config.json; without it generation would run on.
  void add_generation_stops() {
    const auto generation = read_json(folder_ / "generation_config.json");
    if (!generation.is_object() || !generation.contains("eos_token_id")) return;
    const auto& stops = generation["eos_token_id"];
    for (const auto& id : stops.is_array() ? stops : json::array({stops})) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0) continue;
      auto& known = config_.eos_token_ids;
      if (std::find(known.begin(), known.end(), id.get<int64_t>()) == known.end()) known.push_back(id.get<int64_t>());
    }
  }

  void add_file(const fs::path& path) {
    const auto file = std::make_shared<SafetensorsFile>(path);
    for (const auto& [name, entry] : file->entries()) {
      const auto [place, is_new] = file_of_.try_emplace(name, file);
      require(is_new, path.string(), ": tensor \"", name, "\" is also in ", place->second->path().string());
      tensors_[name] = {entry.shape, entry.dtype};
    }
  }

  void open_shards() {
    const auto path = folder_ / "model.safetensors.index.json";
    const auto index = read_json(path);
    require(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), path.string(),
            ": no weight_map");
    std::set<std::string> files;
    for (const auto& [name, file] : index["weight_map"].items()) {
      require(file.is_string(), path.string(), ": weight_map: \"", name, "\" names no file");
      const auto text = file.get<std::string>();
      require(fs::path(text).filename() == text && text != "..", path.string(), ": weight_map names \"", text,
              "\", which is not a file of this folder");
      files.insert(text);
    }
    for (const auto& file : files) add_file(folder_ / file);
    for (const auto& [name, file] : index["weight_map"].items()) {
      const auto found = file_of_.find(name);
      require(found != file_of_.end() && found->second->path().filename() == file.get<std::string>(), path.string(),
              ": tensor \"", name, "\" is not in ", file.get<std::string>());
    }
  }

  fs::path folder_;
  ModelConfig config_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::shared_ptr<SafetensorsFile>> file_of_;
};

}  // namespace

std::unique_ptr<CheckpointReader> open_hf_folder(const fs::path& folder) { return std::make_unique<HfFolder>(folder); }

}  // namespace troupe
