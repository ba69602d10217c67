#include "actors/run_checkpoint.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "parallel/checkpoint_folder.h"

namespace troupe {
namespace {

nlohmann::json parse_state(const std::string& text, const std::filesystem::path& checkpoint) {
  auto state = nlohmann::json::parse(text, nullptr, false);
  require(state.is_object(), (checkpoint / "state.json").string(), " is not a JSON object");
  return state;
}

FoundCheckpoint with_state(CheckpointInfo info) {
  return {info.path, parse_state(info.state_json, info.path), std::move(info.groups)};
}

}  // namespace

void save_checkpoint(const CheckpointWrite& write, Learner& learner, const RankGroups& groups,
                     CheckpointWriter& writer) {
  auto state = nlohmann::json::parse(write.state_json);
  state["learner"] = learner.state();
  const auto& degrees = groups.degrees();
  const nlohmann::json world{
      {"pipeline_parallel_degree", degrees.pipeline}, {"data_parallel_replicate_degree", degrees.replicate},
      {"data_parallel_shard_degree", degrees.shard},  {"context_parallel_degree", degrees.context},
      {"tensor_parallel_degree", degrees.tensor},     {"expert_parallel_degree", degrees.expert}};
  writer.save({write.folder, write.step, write.step, state.dump(), write.groups, write.keep_latest_k, world.dump()},
              sharded_values(learner.model(), learner.optimizer_state()));
}

void load_checkpoint(const std::filesystem::path& checkpoint, Learner& learner) {
  const auto state = parse_state(read_file(checkpoint / "state.json"), checkpoint);
  require(state.contains("learner"), (checkpoint / "state.json").string(), " holds no \"learner\"");
  auto values = sharded_values(learner.model(), learner.optimizer_state());
  load_checkpoint_values(checkpoint, values);
  learner.model().parameters_changed();
  learner.set_state(state["learner"]);
}

void load_checkpoint_weights(const std::filesystem::path& checkpoint, Learner& learner) {
  auto values = sharded_values(learner.model());
  load_checkpoint_values(checkpoint, values);
  learner.model().parameters_changed();
}

void write_model_folder(Learner& learner, const RankGroups& groups, const ModelSource& source,
                        const std::filesystem::path& folder, const std::string& export_dtype) {
  const auto weights = learner.borrow_weights(at::kFloat);
  if (groups.world().rank() != 0) return;
  // Beside the old folder until it is whole: a full disk must not cost the model that was there.
  auto partial = folder;
  partial += ".partial";
  std::filesystem::remove_all(partial);
  std::filesystem::create_directories(folder.parent_path());
  const auto dtype = export_dtype == "bfloat16" ? at::kBFloat16 : export_dtype == "float16" ? at::kHalf : at::kFloat;
  write_hf_folder(partial, source.config(), weights, dtype, source.reader());
  replace_folder(partial, folder);
  log::info("model written to ", folder.string());
}

FoundCheckpoint read_checkpoint(const std::filesystem::path& checkpoint) {
  return with_state(read_checkpoint_info(checkpoint));
}

std::optional<FoundCheckpoint> find_checkpoint(const std::filesystem::path& folder) {
  auto found = find_latest_checkpoint(folder);
  if (!found) return std::nullopt;
  return with_state(std::move(*found));
}

}  // namespace troupe
