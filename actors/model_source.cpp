#include "actors/model_source.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/philox.h"
#include "models/text/model_text.h"

namespace troupe {
namespace {

/// Standard normal numbers by Box-Muller, one per element: a function of (seed, name, element).
Tensor random_normal(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape, double deviation) {
  auto tensor = at::empty(shape, at::kFloat);
  auto* out = tensor.data_ptr<float>();
  const auto digest = xxh3_128(std::as_bytes(std::span(name)));
  const auto id = std::stoull(digest.substr(0, 15), nullptr, 16);
  for (int64_t i = 0; i < tensor.numel(); i += 2) {
    const auto words = random_words(seed, id, static_cast<uint32_t>(i / 2), RandomStream::kInitialisation);
    const double radius = std::sqrt(-2 * std::log((words[0] + 1.0) * 0x1.0p-32)) * deviation;
    const double angle = 2 * std::numbers::pi * words[1] * 0x1.0p-32;
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < tensor.numel()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return tensor;
}

/// A folder that only describes a model (config.json and the text side), for runs that start from random weights.
class DescriptionReader : public CheckpointReader {
 public:
  explicit DescriptionReader(std::filesystem::path folder) : folder_(std::move(folder)) {
    const auto json = nlohmann::json::parse(read_file(folder_ / "config.json"), nullptr, false);
    require(json.is_object(), (folder_ / "config.json").string(), " is not a JSON object");
    config_ = parse_model_config(json);
    for (const char* name : {"tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json",
                             "added_tokens.json", "chat_template.jinja", "generation_config.json"}) {
      if (std::filesystem::exists(folder_ / name)) text_files_[name] = read_file(folder_ / name);
    }
  }
  const ModelConfig& config() const override { return config_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  Tensor read(const std::string& name, at::ScalarType) const override {
    fail(folder_.string(), " holds no weights, so no ", name);
  }
  std::string tokenizer_json() const override { return text("tokenizer.json"); }
  std::string chat_template() const override { return text("chat_template.jinja"); }
  nlohmann::json tokenizer_config() const override {
    const auto json = nlohmann::json::parse(text("tokenizer_config.json"), nullptr, false);
    return json.is_object() ? json : nlohmann::json::object();
  }
  std::map<std::string, std::string> text_files() const override { return text_files_; }
  std::filesystem::path path() const override { return folder_; }

 private:
  std::string text(const std::string& name) const {
    const auto found = text_files_.find(name);
    return found == text_files_.end() ? "" : found->second;
  }
  std::filesystem::path folder_;
  ModelConfig config_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> text_files_;
};

}  // namespace

std::string ModelDescription::fingerprint() const {
  Hasher hasher;
  const auto add = [&hasher](const std::string& text) {
    const auto size = std::to_string(text.size()) + ":";
    hasher.update(std::as_bytes(std::span(size)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  add(config.dump());
  for (const auto& [name, content] : text_files) {
    add(name);
    add(content);
  }
  return hasher.digest();
}

ModelSource::ModelSource(ModelOptions options, uint64_t seed) : options_(std::move(options)), seed_(seed) {
  if (options_.path.empty()) throw UsageError("model.path is empty: it takes a Hugging Face folder or a GGUF file");
  const std::filesystem::path path = options_.path;
  const bool description_only = options_.random_init && std::filesystem::exists(path / "config.json");
  if (description_only) {
    reader_ = std::make_unique<DescriptionReader>(path);
  } else {
    reader_ = open_checkpoint(path);
  }
  config_ = reader_->config();
  tokenizer_config_ = reader_->tokenizer_config();
  auto chat_template = reader_->chat_template();
  if (!options_.chat_template_path.empty()) chat_template = read_file(options_.chat_template_path);
  tokenizer_ = open_tokenizer(reader_->text_files());
  if (!chat_template.empty()) template_ = std::make_unique<ChatTemplate>(chat_template);
  template_source_ = std::move(chat_template);
  if (options_.is_reward_model) become_reward_model();
  for (auto& spec : parameter_specs(config_)) specs_[spec.name] = spec;
}

ModelSource::ModelSource(const ModelDescription& description)
    : config_(parse_model_config(description.config)), tokenizer_(open_tokenizer(description.text_files)) {
  options_.path = "the run's model";
  for (auto& spec : parameter_specs(config_)) specs_[spec.name] = spec;
}

ModelDescription ModelSource::description() const {
  ModelDescription description{write_model_config(config_, "float32"), {}};
  for (const auto& [name, content] : reader_->text_files())
    if (name != "chat_template.jinja" && name != "generation_config.json") description.text_files[name] = content;
  return description;
}

void ModelSource::become_reward_model() {
  require(config_.num_labels <= 1, options_.path, ": a classifier of ", config_.num_labels,
          " labels; a reward model has one score");
  has_fresh_head_ = config_.num_labels == 0;
  config_.num_labels = 1;
  config_.tie_word_embeddings = false;
  // Readers look for the last token that is not padding: padding with a token that ends answers would hide the end.
  auto& padding = config_.source["pad_token_id"];
  const auto ends = stop_token_ids();
  const auto is_end = [&](int64_t id) { return std::find(ends.begin(), ends.end(), id) != ends.end(); };
  if (padding.is_number_integer() && !is_end(padding.get<int64_t>())) return;
  int64_t id = 0;
  while (is_end(id)) ++id;
  padding = id;
}

void ModelSource::check_weights() const {
  if (options_.random_init) return;
  for (const auto& [name, spec] : specs_) {
    if (has_fresh_head_ && name == "score.weight") continue;
    const auto found = reader_->tensors().find(name);
    require(found != reader_->tensors().end(), options_.path, ": tensor ", name, " is missing");
    require(found->second.shape == spec.shape, options_.path, ": tensor ", name,
            " has another shape than config.json says");
  }
}

Tensor ModelSource::read(const std::string& name) const {
  if (!options_.random_init && !(has_fresh_head_ && name == "score.weight")) return reader_->read(name, at::kFloat);
  const auto& shape = specs_.at(name).shape;
  if (name.ends_with("bias")) return at::zeros(shape, at::kFloat);
  if (shape.size() == 1) return at::ones(shape, at::kFloat);
  return random_normal(seed_, name, shape, config_.initializer_range);
}

std::string ModelSource::weights_id() const {
  const auto weight = read(parameter_specs(config_).front().name).contiguous();
  return xxh3_128(std::span(static_cast<const std::byte*>(weight.const_data_ptr()), weight.nbytes()));
}

std::vector<int32_t> ModelSource::encode(const Prompt& prompt) const {
  require(tokenizer_ != nullptr, options_.path,
          ": no tokenizer (tokenizer.json beside the weights, or inside the GGUF file)");
  std::vector<int32_t> tokens;
  if (template_ == nullptr) {
    std::string text;
    for (const auto& [role, content] : prompt.messages) text += content;
    tokens = tokenizer_->encode(text, true);
  } else {
    auto messages = OrderedJson::array();
    for (const auto& [role, content] : prompt.messages) messages.push_back({{"role", role}, {"content", content}});
    tokens =
        tokenizer_->encode(template_->render(template_variables(tokenizer_config_, std::move(messages), true)), false);
  }
  require(!tokens.empty(), "prompt ", prompt.id, " has no tokens");
  for (const auto token : tokens)
    require(token >= 0 && token < config_.vocab_size, "prompt ", prompt.id, ": token ", token,
            " is outside of the model's vocabulary of ", config_.vocab_size);
  return tokens;
}

std::vector<int64_t> ModelSource::stop_token_ids() const { return troupe::stop_token_ids(config_, tokenizer_.get()); }

}  // namespace troupe
