// `troupe verify DIR...`: does this build compute what the reference computed? One JSON object a folder.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "apps/commands.h"
#include "apps/text_model.h"
#include "models/formats/safetensors.h"
#include "models/verify.h"
#include "rollout/generate.h"
#include "rollout/packed_model.h"

namespace troupe::apps {
namespace {

/// The greedy continuation through the generation engine: true where it equals `greedy_ids`, none where there is
/// nothing to compare.
std::optional<bool> greedy_equal(const std::string& folder) {
  const SafetensorsFile expected(std::filesystem::path(folder) / "expected.safetensors");
  if (expected.entries().count("greedy_ids") == 0) return std::nullopt;
  const auto input = expected.tensor("input_ids").to(at::kInt).contiguous();
  const auto greedy = expected.tensor("greedy_ids").to(at::kInt).contiguous();
  const auto reader = open_checkpoint(folder);
  EngineOptions options;
  options.max_context_length = greedy.size(1);
  Engine engine(reader->config(), options, nullptr);
  engine.set_weights(pack_model(reader->config(), {0, load_weights(*reader, at::kFloat)}, at::kFloat, 1));
  std::vector<GenerationRequest> requests;
  for (int64_t row = 0; row < input.size(0); ++row) {
    GenerationRequest request;
    request.sample_id = make_sample_id(static_cast<uint64_t>(row), 0);
    const auto* ids = input[row].data_ptr<int32_t>();
    request.prompt_tokens.assign(ids, ids + input.size(1));
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = static_cast<int32_t>(greedy.size(1) - input.size(1));
    requests.push_back(std::move(request));
  }
  bool equal = true;
  for (const auto& trajectory : generate_all(engine, std::move(requests))) {
    const auto* ids = greedy[static_cast<int64_t>(trajectory.group)].data_ptr<int32_t>();
    equal = equal && trajectory.tokens == std::vector<int32_t>(ids, ids + greedy.size(1));
  }
  return equal;
}

int verify(const std::vector<std::string>& folders) {
  bool all_good = true;
  for (const auto& folder : folders) {
    auto result = verify_model_folder(folder);
    std::optional<bool> equal;
    if (result.error.empty()) {
      try {
        equal = greedy_equal(folder);
      } catch (const std::exception& error) {
        result.error = error.what();
      }
    }
    const bool good = result.ok && result.error.empty() && equal.value_or(true);
    // What failed before its first comparison must not look like a perfect match.
    const bool compared = result.ok || std::isnan(result.logits_max_abs) ||
                          std::max({result.logits_max_abs, result.scores_max_abs, result.loss_abs, result.grad_norm_rel,
                                    result.grad_max_abs}) > 0;
    auto number = [compared](double value) {
      return std::isnan(value) || !compared ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
    };
    nlohmann::ordered_json line{
        {"dir", folder},
        {"logits_max_abs", number(result.logits_max_abs)},
        {"scores_max_abs", number(result.scores_max_abs)},
        {"loss_abs", number(result.loss_abs)},
        {"grad_norm_rel", number(result.grad_norm_rel)},
        {"grad_max_abs", number(result.grad_max_abs)},
        {"greedy_equal", equal ? nlohmann::ordered_json(*equal) : nlohmann::ordered_json()},
        {"ok", good},
        {"error", result.error.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(result.error)}};
    std::cout << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
    all_good = all_good && good;
  }
  return all_good ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto folders = std::make_shared<std::vector<std::string>>();
  auto* command = app.add_subcommand(
      "verify", "replay a folder's expected.safetensors: logits, loss, gradients, greedy continuation");
  command->add_option("folders", *folders, "model folders that hold expected.safetensors and expected.json")
      ->required();
  command->callback([folders, &action] { action = [folders] { return verify(*folders); }; });
}

}  // namespace troupe::apps
