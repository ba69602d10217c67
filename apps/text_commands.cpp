// `troupe tokenize` and `troupe chat-template`: what the model will see, without the model.
#include <iostream>
#include <iterator>

#include "apps/commands.h"
#include "apps/text_model.h"
#include "base/error.h"
#include "base/file.h"

namespace troupe::apps {
namespace {

std::string read_text(const std::string& path) {
  if (path != "-") return read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

struct TokenizeOptions {
  std::string model, text, text_file;
  bool decode = false, add_special_tokens = false, keep_special_tokens = false;
};

int tokenize(const TokenizeOptions& options) {
  const auto model = open_text_model(options.model);
  const auto input = options.text_file.empty() ? options.text : read_text(options.text_file);
  if (!options.decode) {
    std::cout << nlohmann::json(model.need_tokenizer().encode(input, options.add_special_tokens)).dump() << "\n";
    return 0;
  }
  const auto ids = nlohmann::json::parse(input, nullptr, false);
  if (!ids.is_array()) throw UsageError("--decode takes token ids as one JSON array");
  std::vector<int32_t> tokens;
  for (const auto& id : ids) {
    const bool known =
        id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < model.need_tokenizer().vocab_size();
    if (!known)
      throw UsageError(concat("no token ", id.dump(), ": ids go from 0 to ", model.need_tokenizer().vocab_size() - 1));
    tokens.push_back(id.get<int32_t>());
  }
  std::cout << model.need_tokenizer().decode(tokens, !options.keep_special_tokens);
  return 0;
}

struct ChatTemplateOptions {
  std::string model, messages, template_file, tools;
  bool no_generation_prompt = false;
};

int render_chat(const ChatTemplateOptions& options) {
  const auto model = open_text_model(options.model, options.template_file);
  require(!model.chat_template.empty(), options.model, " has no chat template; give one with --template");
  auto parse = [](const std::string& path, const char* what) {
    auto value = OrderedJson::parse(read_text(path), nullptr, false);
    if (!value.is_array()) throw UsageError(concat(path, ": ", what, " are one JSON array"));
    return value;
  };
  auto variables = template_variables(model.reader->tokenizer_config(), parse(options.messages, "messages"),
                                      !options.no_generation_prompt);
  if (!options.tools.empty()) variables["tools"] = parse(options.tools, "tools");
  std::cout << ChatTemplate(model.chat_template).render(variables);
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto options = std::make_shared<TokenizeOptions>();
  auto* command = app.add_subcommand("tokenize", "text to token ids (one JSON array), or back with --decode");
  command->add_option("--model", options->model, "Hugging Face folder or GGUF file")->required();
  auto* text = command->add_option("--text", options->text, "the text, or with --decode the JSON array");
  auto* file = command->add_option("--text-file", options->text_file, "file with it; - for standard input");
  text->excludes(file);
  command->add_flag("--decode", options->decode, "ids to text");
  command->add_flag("--add-special-tokens", options->add_special_tokens, "apply the post-processor (BOS and the like)");
  command->add_flag("--keep-special-tokens", options->keep_special_tokens, "with --decode: print special tokens too");
  command->callback([options, text, file, &action] {
    if (text->count() + file->count() == 0) throw CLI::RequiredError("--text or --text-file");
    action = [options] { return tokenize(*options); };
  });
}

void add_chat_template(CLI::App& app, Action& action) {
  auto options = std::make_shared<ChatTemplateOptions>();
  auto* command = app.add_subcommand("chat-template", "print the text that a conversation becomes");
  command->add_option("--model", options->model, "Hugging Face folder or GGUF file")->required();
  command->add_option("--messages", options->messages, "JSON file with the messages; - for standard input")->required();
  command->add_option("--template", options->template_file, "another chat template than the model's");
  command->add_option("--tools", options->tools, "JSON file with tool descriptions");
  command->add_flag("--no-generation-prompt", options->no_generation_prompt, "end after the last message");
  command->callback([options, &action] { action = [options] { return render_chat(*options); }; });
}

}  // namespace troupe::apps
