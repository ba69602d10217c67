// Configuration -> topology, with every check that needs no model: impossible combinations stop here with exit code 2.
#pragma once

#include "actors/topology.h"
#include "apps/config.h"
#include "parallel/step_estimate.h"

namespace troupe::apps {

RlTopology build_rl_topology(const Config& config);
/// What a worker needs that plays `role`, "critic" or "reference", of such a run: only the models of that role are
/// looked for, no data, rewards or checkpoints.
RlTopology build_judge_topology(const Config& config, const std::string& role);
PretrainTopology build_pretrain_topology(const Config& config);
PretrainTopology build_sft_topology(const Config& config);
PretrainTopology build_reward_model_topology(const Config& config);
PretrainTopology build_dpo_topology(const Config& config);

/// What `troupe plan` asks about: a layout on ranks that need not be here.
struct PlanTopology {
  std::string model_path;
  MeshDegrees mesh;
  ParallelOptions parallel;
  StepShape shape;
};
PlanTopology build_plan_topology(const Config& config);

}  // namespace troupe::apps
