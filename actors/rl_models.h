// The models of an RL run and what its trainer's ranks are given: shared by the run itself and by its replay.
#pragma once

#include "actors/learner_shard.h"
#include "actors/reference.h"
#include "actors/topology.h"

namespace troupe {

struct RlModels {
  std::shared_ptr<const ModelSource> policy;
  std::shared_ptr<const ModelSource> reference;  // null where the algorithm measures no KL
  std::shared_ptr<const ModelSource> critic;     // null where it needs no values
};

/// Opens what the algorithm needs. Throws Error naming the path and what is wrong with it.
RlModels open_models(const RlTopology& topology);
/// Of a worker that plays `role`, "critic" or "reference": that model and the policy's description.
RlModels open_judge_models(const RlTopology& topology, const std::string& role);
/// The tokenizer's vocabulary, not the head's rows, which may be padded (invariant 6): no id without a token is drawn.
int64_t log_prob_vocab_size(const ModelSource& policy);
/// Of every rank of the trainer; without a board: nothing is published.
LearnerShardSetup policy_shard_setup(const RlTopology& topology, const RlModels& models, int threads,
                                     std::chrono::milliseconds limit, std::shared_ptr<ObserverGate> observer);

/// The critic beside that trainer, on ranks of its own, resuming where `policy` does; empty where the algorithm needs
/// no values.
std::function<critic_actor(caf::actor_system&)> start_critic(const RlTopology& topology, const RlModels& models,
                                                             const LearnerShardSetup& policy,
                                                             std::shared_ptr<Trace> trace);
/// The reference between reward and buffer, likewise, with new ranks at each call; empty where the algorithm measures
/// no KL.
ReferenceSetup reference_setup(const RlTopology& topology, const RlModels& models, const LearnerShardSetup& policy,
                               std::shared_ptr<Trace> trace);
using StartReference =
    std::function<sample_store_actor(caf::actor_system&, sample_store_actor buffer, supervisor_actor)>;
StartReference start_reference(const RlTopology& topology, const RlModels& models, const LearnerShardSetup& policy,
                               std::shared_ptr<Trace> trace);

}  // namespace troupe
