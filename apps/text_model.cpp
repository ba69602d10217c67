#include "apps/text_model.h"

#include <set>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"

namespace troupe::apps {

const Tokenizer& TextModel::need_tokenizer() const {
  require(tokenizer != nullptr,
          "this model has no tokenizer (tokenizer.json beside the weights, or inside the GGUF file)");
  return *tokenizer;
}

std::vector<int64_t> TextModel::stop_token_ids() const {
  std::set<int64_t> ids(config().eos_token_ids.begin(), config().eos_token_ids.end());
  if (tokenizer != nullptr) {
    for (const char* name : {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>"}) {
      const auto id = tokenizer->token_id(name);
      if (id >= 0 && tokenizer->is_special(id)) ids.insert(id);
    }
  }
  return {ids.begin(), ids.end()};
}

std::vector<int32_t> TextModel::encode_chat(const OrderedJson& messages) const {
  require(!chat_template.empty(), "this model has no chat template; give one with data.chat_template or --template");
  const auto text = ChatTemplate(chat_template).render(template_variables(*reader, messages, true));
  return need_tokenizer().encode(text, false);
}

TextModel open_text_model(const std::filesystem::path& path, const std::filesystem::path& template_file) {
  if (path.empty()) throw UsageError("no model: model.path (or --model) takes a Hugging Face folder or a GGUF file");
  TextModel model;
  model.reader = open_checkpoint(path);
  const auto tokenizer_json = model.reader->tokenizer_json();
  if (!tokenizer_json.empty()) model.tokenizer = parse_tokenizer(tokenizer_json);
  model.chat_template = template_file.empty() ? model.reader->chat_template() : read_file(template_file);
  return model;
}

OrderedJson template_variables(const CheckpointReader& reader, OrderedJson messages, bool add_generation_prompt) {
  OrderedJson variables{{"messages", std::move(messages)},
                        {"tools", nullptr},
                        {"documents", nullptr},
                        {"add_generation_prompt", add_generation_prompt}};
  const auto settings = reader.tokenizer_config();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto found = settings.find(name);
    if (found == settings.end() || found->is_null()) continue;
    // Older folders write an added token as an object, newer ones as its text.
    variables[name] =
        found->is_object() ? OrderedJson(found->value("content", "")) : OrderedJson(found->get<std::string>());
  }
  return variables;
}

at::ScalarType resolve_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  return has_fast_bf16() ? at::kBFloat16 : at::kFloat;
}

}  // namespace troupe::apps
