// What several subcommands open first: a model's configuration, tokenizer and chat template.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/formats/checkpoint_reader.h"
#include "models/text/model_text.h"

namespace troupe::apps {

struct TextModel {
  std::unique_ptr<CheckpointReader> reader;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the model has none
  std::string chat_template;             // "" where it has none

  const ModelConfig& config() const { return reader->config(); }
  /// Throws Error saying that the path holds no tokenizer.
  const Tokenizer& need_tokenizer() const;
  /// Renders messages with the generation prompt and encodes them (the template writes BOS itself).
  std::vector<int32_t> encode_chat(const OrderedJson& messages) const;
};

/// `path` empty: UsageError. `template_file` overrides the model's chat template where not empty.
TextModel open_text_model(const std::filesystem::path& path, const std::filesystem::path& template_file = {});

}  // namespace troupe::apps
