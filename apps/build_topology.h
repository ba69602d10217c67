// Configuration -> topology, with every check that needs no model: impossible combinations stop here with exit code 2.
#pragma once

#include "actors/topology.h"
#include "apps/config.h"

namespace troupe::apps {

RlTopology build_rl_topology(const Config& config);
PretrainTopology build_pretrain_topology(const Config& config);
PretrainTopology build_sft_topology(const Config& config);
PretrainTopology build_reward_model_topology(const Config& config);
PretrainTopology build_dpo_topology(const Config& config);

}  // namespace troupe::apps
