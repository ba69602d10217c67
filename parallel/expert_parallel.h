// Tokens on their way to experts on other ranks and back (Lepikhin et al. 2020, "GShard"), without a limit to what an
// expert takes. Equal shares of the experts lie on the ranks of a group, in order.
//
//   here    route -> pairs (token, choice) sorted by expert -> '                          ' -> sum of each token's
//   pairs
//                                                       all-to-all                   all-to-all
//   there                                            '-> rows by expert -> experts -> weigh '
//
// The ranks say first how many rows each expert will get from each of them: all parts are uneven and may be empty.
// Backward goes the same way: a pair's gradient to its expert, the gradients of its row and weight home.
#pragma once

#include "models/exchange.h"
#include "parallel/collectives.h"

namespace troupe {

/// x_TD and its routing over all `num_experts` -> [T, D], the weighed sum of what the chosen experts give. `held` is
/// called once, also where no row comes. Every rank of the group calls.
Tensor experts_of_ranks(const Tensor& x_TD, const blocks::Routing& routing, int64_t num_experts, Collectives& experts,
                        const Exchange::HeldExperts& held);

}  // namespace troupe
