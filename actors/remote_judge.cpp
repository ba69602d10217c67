#include "actors/remote_judge.h"

#include "actors/run_setup.h"
#include "base/error.h"

namespace troupe {
namespace {

struct Opened {
  RlTopology topology;
  RlModels models;
  LearnerShardSetup policy;
};

/// Without a slash at its end.
std::string absolute_path(const std::string& path) {
  const auto normal = std::filesystem::absolute(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

/// A path inside of the run's folder, where that has another name here.
std::string seen_here(const std::string& path, const std::string& folder, const std::string& folder_here) {
  return path.starts_with(folder + "/") ? folder_here + path.substr(folder.size()) : path;
}

Opened open(const JudgeSettings& settings, const WorkerOptions& options, const char* role) {
  require(options.read_config != nullptr, "this worker reads no configurations");
  Opened opened;
  opened.topology = options.read_config(settings.config);
  opened.topology.learner.parallel.sharding.parameter_dtype = compute_dtype(settings.dtype);
  opened.topology.run.folder = options.folder.empty() ? settings.folder : options.folder;
  opened.models = open_judge_models(opened.topology, role);
  const auto& model = std::string(role) == "critic" ? opened.models.critic : opened.models.reference;
  require(model != nullptr, "the run's configuration has no ", role);
  require(model->weights_id() == settings.weights_id, "the ", role, "'s weights here are not those of the run (", role,
          ".path)");
  opened.policy = policy_shard_setup(opened.topology, opened.models, options.num_threads,
                                     milliseconds_of(opened.topology.limits.request_timeout_s), nullptr);
  opened.policy.resume_from = seen_here(settings.resume_from, settings.folder, opened.topology.run.folder);
  return opened;
}

}  // namespace

nlohmann::json to_json(const JudgeSettings& settings) {
  return {{"run", settings.run},
          {"config", settings.config},
          {"folder", settings.folder},
          {"resume_from", settings.resume_from},
          {"weights_id", settings.weights_id},
          {"dtype", settings.dtype},
          {"lost_after_s", settings.lost_after_s}};
}

JudgeSettings parse_judge_settings(const nlohmann::json& json) {
  try {
    return {json.at("run"),        json.at("config"), json.at("folder"),      json.at("resume_from"),
            json.at("weights_id"), json.at("dtype"),  json.at("lost_after_s")};
  } catch (const nlohmann::json::exception& error) {
    fail("welcome: ", error.what());
  }
}

JudgeSettings judge_settings(const RlTopology& topology, const ModelSource& model, const std::string& resume_from) {
  return {topology.run.name,
          topology.run.loadable_config,
          absolute_path(topology.run.folder),
          resume_from.empty() ? "" : absolute_path(resume_from),
          model.weights_id(),
          topology.learner.parallel.sharding.parameter_dtype == at::kFloat ? "float32" : "bfloat16",
          topology.cluster.lost_after_s};
}

critic_actor start_remote_critic(caf::actor_system& system, const JudgeSettings& settings, const WorkerOptions& options,
                                 std::shared_ptr<Trace> trace) {
  const auto opened = open(settings, options, "critic");
  return start_critic(opened.topology, opened.models, opened.policy, std::move(trace))(system);
}

grader_actor start_remote_reference(caf::actor_system& system, const JudgeSettings& settings,
                                    const WorkerOptions& options, std::shared_ptr<Trace> trace,
                                    std::function<void()> loaded) {
  const auto opened = open(settings, options, "reference");
  return spawn_reference_grader(
      system, reference_setup(opened.topology, opened.models, opened.policy, std::move(trace)), std::move(loaded));
}

}  // namespace troupe
