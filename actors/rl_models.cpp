#include "actors/rl_models.h"

#include "actors/critic.h"
#include "actors/judge_shards.h"
#include "actors/run_setup.h"
#include "base/error.h"

namespace troupe {
namespace {

/// Without gradients to join, replicas are further shards.
MeshDegrees reference_mesh(const RlTopology& topology) {
  auto mesh = topology.mesh;
  mesh.shard *= std::exchange(mesh.replicate, 1);
  return mesh;
}

/// The frozen model that the algorithm's KL is measured against; null where there is no KL.
std::shared_ptr<const ModelSource> load_reference(const RlTopology& topology,
                                                  const std::shared_ptr<const ModelSource>& model) {
  if (!needs_reference(topology.learner.algorithm)) return nullptr;
  auto reference = open_reference(topology.reference, topology.model, model, topology.run.seed);
  check_parallel(reference->config(), reference_mesh(topology), topology.learner.parallel);
  return reference;
}

/// The critic that the algorithm's values come from; null where it needs none.
std::shared_ptr<const ModelSource> load_critic(const RlTopology& topology, const ModelSource& model) {
  if (!needs_critic(topology.learner.algorithm)) return nullptr;
  auto options = topology.critic.model.path.empty() ? topology.model : topology.critic.model;
  options.is_reward_model = true;
  auto critic = std::make_shared<const ModelSource>(options, topology.run.seed);
  critic->check_weights();
  require(critic->config().vocab_size == model.config().vocab_size, "critic.path = ", options.path,
          ": its vocabulary of ", critic->config().vocab_size, " tokens is not the ", model.config().vocab_size,
          " of model.path");
  check_parallel(critic->config(), topology.mesh, topology.learner.parallel);
  return critic;
}

}  // namespace

RlModels open_models(const RlTopology& topology) {
  refuse_own_model("model.path", topology.model.path, topology.run.folder);
  refuse_own_model("reference.path", topology.reference.path, topology.run.folder);
  refuse_own_model("critic.path", topology.critic.model.path, topology.run.folder);
  const auto policy = std::make_shared<const ModelSource>(topology.model, topology.run.seed);
  policy->check_weights();
  check_parallel(policy->config(), topology.mesh, topology.learner.parallel);
  require(policy->tokenizer() != nullptr, topology.model.path, ": no tokenizer, which RL needs");
  return {policy, load_reference(topology, policy), load_critic(topology, *policy)};
}

RlModels open_judge_models(const RlTopology& topology, const std::string& role) {
  const auto policy = std::make_shared<const ModelSource>(topology.model, topology.run.seed);
  require(policy->tokenizer() != nullptr, topology.model.path, ": no tokenizer, which RL needs");
  if (role == "critic") return {policy, nullptr, load_critic(topology, *policy)};
  return {policy, load_reference(topology, policy), nullptr};
}

int64_t log_prob_vocab_size(const ModelSource& policy) {
  return std::min(policy.config().vocab_size, policy.tokenizer()->vocab_size());
}

LearnerShardSetup policy_shard_setup(const RlTopology& topology, const RlModels& models, int threads,
                                     std::chrono::milliseconds limit, std::shared_ptr<ObserverGate> observer) {
  auto learner = topology.learner;
  learner.log_prob_vocab_size = log_prob_vocab_size(*models.policy);
  learner.algorithm.temperature = topology.sampling.temperature;
  auto setup = shard_setup(learner, topology.run, topology.checkpoint, topology.mesh, threads, limit);
  setup.model = models.policy;
  setup.observer = std::move(observer);
  if (models.critic != nullptr) setup.num_resting_steps = topology.critic.warmup_steps;
  setup.num_steps = topology.run.steps;
  return setup;
}

std::function<critic_actor(caf::actor_system&)> start_critic(const RlTopology& topology, const RlModels& models,
                                                             const LearnerShardSetup& policy,
                                                             std::shared_ptr<Trace> trace) {
  if (models.critic == nullptr) return {};
  auto setup = policy;
  setup.model = models.critic;
  setup.options.optimizer.lr = topology.critic.lr;
  setup.options.peak_flops = 0;  // measured by the policy alone
  setup.groups = make_groups(topology.mesh, policy.limit);
  setup.folder = policy.folder / "critic";
  const auto from = policy.resume_from.empty() ? policy.resume_from : std::filesystem::absolute(policy.resume_from);
  if (!from.empty()) setup.resume_from = from.parent_path().parent_path() / "critic" / "checkpoints" / from.filename();
  ShardGroupSetup shards;
  shards.num_ranks = topology.mesh.num_ranks();
  shards.make_work = [setup](int rank) { return make_critic_shard(rank, setup); };
  shards.role = "critic";
  shards.trace = std::move(trace);
  shards.limit = policy.limit;
  return [shards](caf::actor_system& system) { return spawn_critic(system, shards); };
}

ReferenceSetup reference_setup(const RlTopology& topology, const RlModels& models, const LearnerShardSetup& policy,
                               std::shared_ptr<Trace> trace) {
  const auto mesh = reference_mesh(topology);
  auto ranks = policy;
  ranks.model = models.reference;
  ranks.options.peak_flops = 0;
  ranks.groups = make_groups(mesh, policy.limit);
  ReferenceSetup reference;
  reference.shards.num_ranks = mesh.num_ranks();
  reference.shards.make_work = [ranks](int rank) { return make_reference_shard(rank, ranks); };
  reference.shards.role = "reference";
  reference.shards.trace = std::move(trace);
  reference.shards.limit = policy.limit;
  if (topology.run.deterministic) reference.max_samples = 1;
  return reference;
}

StartReference start_reference(const RlTopology& topology, const RlModels& models, const LearnerShardSetup& policy,
                               std::shared_ptr<Trace> trace) {
  if (models.reference == nullptr) return {};
  return [=](caf::actor_system& system, const sample_store_actor& buffer, const supervisor_actor&) {
    return spawn_reference(system, buffer, reference_setup(topology, models, policy, trace));
  };
}

}  // namespace troupe
