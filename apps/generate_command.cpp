// `troupe generate`: text from a model, streamed for one prompt or as a job over a JSONL file.
#include <fstream>
#include <iostream>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/text_model.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "rollout/generate.h"
#include "rollout/packed_model.h"

namespace troupe::apps {
namespace {

struct GenerateOptions {
  std::string model, prompt, system, input, output, template_file, dtype = "auto";
  bool chat = false;
  SamplingOptions sampling;
  uint64_t seed = 0;
  int threads = 0;
  int32_t max_sequences = 32;
  int64_t max_context_length = 2048;
};

void check_options(const GenerateOptions& options) {
  if (options.prompt.empty() == options.input.empty()) throw UsageError("give either --prompt or --input");
  if (!options.input.empty() && options.output.empty()) throw UsageError("--input needs --output");
  compute_dtype(options.dtype);  // an unknown one is refused before the model is opened
  if (!options.prompt.empty() && !options.chat && (!options.system.empty() || !options.template_file.empty()))
    throw UsageError("--system and --template shape a chat: give --chat too");
  try {
    check_sampling_options(options.sampling);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

OrderedJson chat_messages(const GenerateOptions& options, const OrderedJson& prompt) {
  auto messages = OrderedJson::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  if (prompt.is_array()) {
    for (const auto& message : prompt) messages.push_back(message);
  } else {
    messages.push_back({{"role", "user"}, {"content", prompt}});
  }
  return messages;
}

std::vector<int32_t> encode_prompt(const TextModel& model, const GenerateOptions& options, const OrderedJson& prompt) {
  if (options.chat || prompt.is_array()) return model.encode_chat(chat_messages(options, prompt));
  return model.need_tokenizer().encode(prompt.get<std::string>(), true);
}

std::unique_ptr<Engine> make_engine(const TextModel& model, const GenerateOptions& options) {
  EngineOptions engine_options;
  engine_options.max_sequences = options.max_sequences;
  engine_options.max_context_length = options.max_context_length;
  engine_options.seed = options.seed;
  engine_options.num_threads = options.threads > 0 ? options.threads : num_usable_cores();
  at::set_num_threads(engine_options.num_threads);
  const auto dtype = compute_dtype(options.dtype);
  auto engine = std::make_unique<Engine>(model.config(), engine_options, model.tokenizer.get());
  engine->set_weights(
      pack_model(model.config(), {0, load_weights(*model.reader, dtype)}, dtype, engine_options.num_threads));
  return engine;
}

int generate_one(const TextModel& model, const GenerateOptions& options) {
  const auto engine = make_engine(model, options);
  IncrementalDecoder decoder(model.need_tokenizer(), true);
  engine->set_token_callback([&](uint64_t, int32_t token) { std::cout << decoder.push(token) << std::flush; });
  generate_all(*engine,
               {{make_sample_id(0, 0), 0, encode_prompt(model, options, options.prompt), options.sampling, ""}});
  std::cout << decoder.finish() << std::endl;
  return 0;
}

std::vector<OrderedJson> read_prompts(const std::string& path) {
  std::istringstream lines(read_file(path));
  std::vector<OrderedJson> records;
  int64_t line_number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++line_number;
    if (line_number == 1 && line.rfind("\xEF\xBB\xBF", 0) == 0) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto record = OrderedJson::parse(line, nullptr, false);
    const bool good = record.is_object() &&
                      ((record.contains("prompt") && (record["prompt"].is_string() || record["prompt"].is_array())) ||
                       (record.contains("messages") && record["messages"].is_array()));
    require(good, path, ":", line_number, ": not a JSON object with \"prompt\" or \"messages\"");
    records.push_back(std::move(record));
  }
  require(!records.empty(), path, " holds no prompt");
  return records;
}

int generate_file(const TextModel& model, const GenerateOptions& options) {
  const auto records = read_prompts(options.input);
  const auto engine = make_engine(model, options);
  std::vector<nlohmann::json> results(records.size());
  Console console("auto", static_cast<int64_t>(records.size()), 1);
  // What is no file (/dev/stdout, a pipe) is written to; a file is there once it is whole.
  const bool is_file = !std::filesystem::exists(options.output) || std::filesystem::is_regular_file(options.output);
  const auto partial = is_file ? options.output + ".partial" : options.output;
  std::ofstream out(partial, std::ios::trunc);
  require(out.good(), "cannot write ", partial);
  size_t next = 0, written = 0, done = 0, num_failed = 0;
  while (written < records.size()) {
    // Only as many prompts wait in the engine as it can take: a large file is not held twice.
    while (next < records.size() && engine->num_free_slots() > 0) {
      const auto& record = records[next];
      const auto& prompt = record.contains("messages") ? record["messages"] : record["prompt"];
      try {
        engine->add({make_sample_id(next, 0), 0, encode_prompt(model, options, prompt), options.sampling, ""});
      } catch (const Error& error) {
        results[next] = {{"error", error.what()}};
        ++done;
        ++num_failed;
      }
      ++next;
    }
    for (auto& trajectory : engine->step()) {
      results[trajectory.group] = {{"completion", trajectory.completion_text},
                                   {"finish_reason", to_string(trajectory.finish_reason)},
                                   {"num_tokens", trajectory.num_sampled_tokens()}};
      ++done;
    }
    for (; written < records.size() && !results[written].is_null(); ++written) {  // in the order of the input
      auto record = records[written];
      for (const auto& [key, value] : results[written].items()) record[key] = value;
      out << record.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
      results[written] = nlohmann::json(true);
    }
    console.progress(static_cast<int64_t>(done));
    require(out.good(), "cannot write ", partial, " (is the disk full?)");
  }
  out.close();
  require(!out.fail(), "cannot write ", partial, " (is the disk full?)");
  if (is_file) std::filesystem::rename(partial, options.output);
  log::info(records.size() - num_failed, " completions in ", options.output, "; ",
            engine->metrics().prefill_tokens_saved, " prompt tokens came from the cache");
  if (num_failed > 0) log::warning(num_failed, " prompts gave none: their \"error\" says why");
  return num_failed == records.size() ? static_cast<int>(ExitCode::kFailed) : 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  options->sampling.temperature = 0;
  auto* command = app.add_subcommand("generate", "complete one prompt (streamed) or a JSONL file of them");
  command->add_option("--model", options->model, "Hugging Face folder or GGUF file")->required();
  command->add_option("--prompt", options->prompt, "the prompt");
  command->add_flag("--chat", options->chat, "the prompt is a user's turn: apply the chat template");
  command->add_option("--system", options->system, "system turn, with --chat");
  command->add_option("--input", options->input, "JSONL with \"prompt\" or \"messages\"");
  command->add_option("--output", options->output,
                      "JSONL: the input's fields with completion, finish_reason, num_tokens");
  command->add_option("--template", options->template_file, "another chat template than the model's");
  command->add_option("--temperature", options->sampling.temperature, "0: greedy (default)");
  command->add_option("--top-p", options->sampling.top_p);
  command->add_option("--top-k", options->sampling.top_k);
  command->add_option("--min-p", options->sampling.min_p);
  command->add_option("--max-new-tokens", options->sampling.max_new_tokens)->capture_default_str();
  command->add_option("--stop", options->sampling.stop, "string that ends the text; may be given several times");
  command->add_option("--seed", options->seed)->check(CLI::NonNegativeNumber);
  command->add_option("--dtype", options->dtype, "auto, float32 or bfloat16");
  command->add_option("--threads", options->threads, "default: all cores")->check(CLI::Range(0, 4096));
  command->add_option("--max-sequences", options->max_sequences, "sequences decoded at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  command->add_option("--max-context-length", options->max_context_length, "tokens of prompt and completion")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24));
  command->callback([options, &action] {
    action = [options] {
      check_options(*options);
      auto model = open_text_model(options->model, options->template_file);
      options->sampling.stop_token_ids = stop_token_ids(model.config(), model.tokenizer.get());
      return options->input.empty() ? generate_one(model, *options) : generate_file(model, *options);
    };
  });
}

}  // namespace troupe::apps
