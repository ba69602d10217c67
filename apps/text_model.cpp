#include "apps/text_model.h"

#include "base/error.h"
#include "base/file.h"

namespace troupe::apps {

const Tokenizer& TextModel::need_tokenizer() const {
  require(tokenizer != nullptr,
          "this model has no tokenizer (tokenizer.json, tokenizer.model, a .tiktoken file or vocab.json and merges.txt "
          "beside the weights, or inside the GGUF file)");
  return *tokenizer;
}

std::vector<int32_t> TextModel::encode_chat(const OrderedJson& messages) const {
  require(!chat_template.empty(), "this model has no chat template; give one with data.chat_template or --template");
  const auto text = ChatTemplate(chat_template).render(template_variables(reader->tokenizer_config(), messages, true));
  return need_tokenizer().encode(text, false);
}

TextModel open_text_model(const std::filesystem::path& path, const std::filesystem::path& template_file) {
  if (path.empty()) throw UsageError("no model: model.path (or --model) takes a Hugging Face folder or a GGUF file");
  TextModel model;
  model.reader = open_checkpoint(path);
  model.tokenizer = open_tokenizer(model.reader->text_files());
  model.chat_template = template_file.empty() ? model.reader->chat_template() : read_file(template_file);
  return model;
}

}  // namespace troupe::apps
