// A mixture of experts (Shazeer et al. 2017): each token's chosen gated MLPs, weighed and added. Tokens are sorted by
// expert once; then there is one product an expert, never a loop over tokens.
//
// Shape legend: T tokens, D hidden size, E experts, K experts a token, F an expert's size.
#pragma once

#include "models/blocks/router.h"

namespace troupe::blocks {

/// As the checkpoint holds them (MoeConfig::form): separate ones gate 0, up 0, gate 1, up 1, ..., and down 0, down 1,
/// ...; stacked ones a tensor each. Biases [E, 2 F] and [E, D], or undefined.
struct ExpertWeights {
  std::vector<Tensor> gate_up, down;
  Tensor gate_up_bias, down_bias;
};

/// x_TD -> [T, D], over the experts that the configuration holds, counted from its first. Keeps x, the routing and the
/// projections before the gate for backward. Differentiable in x, the routing's weights and all expert weights; an
/// expert without tokens gets zeros.
Tensor experts(const Tensor& x_TD, const Routing& routing, const ExpertWeights& weights, const MoeConfig& config,
               Activation activation);

/// Adds up each token's rows: [T * K, D] -> [T, D], in fp32 (float64 for float64).
Tensor sum_choices(const Tensor& rows, int64_t num_choices);

}  // namespace troupe::blocks
