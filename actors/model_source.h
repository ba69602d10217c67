// The model that a run starts from: description, weights (read, or seeded random numbers), tokenizer, chat template.
#pragma once

#include "actors/topology.h"
#include "models/formats/checkpoint_reader.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace troupe {

/// A model without its weights: what an engine and its tokenizer are made from, also in another process.
struct ModelDescription {
  nlohmann::json config;                          // config.json
  std::map<std::string, std::string> text_files;  // of the tokenizer, by name
  /// Equal for equal descriptions.
  std::string fingerprint() const;
};

class ModelSource {
 public:
  /// Opens everything but the weights. With `random_init` a folder that holds only config.json and the tokenizer will
  /// do.
  ModelSource(ModelOptions options, uint64_t seed);
  /// Of a description alone: there is nothing to read. Throws Error where it describes no model.
  explicit ModelSource(const ModelDescription& description);

  const ModelConfig& config() const { return config_; }
  /// The model as it travels to a worker that has none.
  ModelDescription description() const;
  /// Null where the model has none.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const CheckpointReader* reader() const { return reader_.get(); }
  /// Null where the model has none and no other was named.
  const ChatTemplate* chat_template() const { return template_.get(); }
  /// "" where there is none.
  const std::string& chat_template_source() const { return template_source_; }
  const nlohmann::json& tokenizer_config() const { return tokenizer_config_; }
  /// One parameter in fp32. Random ones depend on seed, name and place only: ones for norms, zeros for biases, else
  /// normal with the configuration's initializer_range. Thread-safe.
  Tensor read(const std::string& name) const;
  /// Tells the weights of two models of one shape apart: a hash of one tensor, as training changes every one.
  std::string weights_id() const;
  /// Throws Error naming missing, unexpected or misshaped tensors, before anything is built.
  void check_weights() const;
  /// Messages to token ids with the generation prompt; without a chat template the contents stand one after the other.
  std::vector<int32_t> encode(const Prompt& prompt) const;
  /// Every id that ends a turn: the configuration's and those that the tokenizer knows.
  std::vector<int64_t> stop_token_ids() const;

 private:
  void become_reward_model();

  ModelOptions options_;
  uint64_t seed_ = 0;
  ModelConfig config_;
  std::unique_ptr<CheckpointReader> reader_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::string template_source_;
  nlohmann::json tokenizer_config_;
  std::map<std::string, ParameterSpec> specs_;
  bool has_fresh_head_ = false;  // a reward model that begins as a language model
};

}  // namespace troupe
