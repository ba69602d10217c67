// The seam through which a layer's tensors meet what other devices hold of them. The network asks it where tokens or
// features may be split and knows nothing else; the default is one device that holds everything. parallel/ gives
// others.
//
//   tokens -> embed -> [ norm -> enter -> split products -> leave -> + ] x L -> norm -> enter -> hidden state
//                         |    '--- attention over the row's tokens ---'|
//                         '--> route -> experts, whoever holds them ----'
//
// Shape legend: T tokens of a packed row, T' tokens that this device keeps between layers, D hidden size.
#pragma once

#include <functional>

#include "models/blocks/router.h"
#include "models/kernels/attention.h"

namespace troupe {

class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Rows of the table for the whole row's tokens -> [T', D]. Differentiable, as all of these but attention.
  virtual Tensor embed(const Tensor& tokens_T, const Tensor& weight_VD) const;
  /// Before products whose outputs may be split over devices.
  virtual Tensor enter(const Tensor& x_TD) const { return x_TD; }
  /// After products whose inner dimension may be split: their sum.
  virtual Tensor leave(const Tensor& y_TD) const { return y_TD; }
  /// Whether `leave` adds up parts. A bias is then added after it, once.
  virtual bool sums_parts() const { return false; }

  /// What the experts [N, D] that this device holds give for tokens x_ND; `routing` counts from the first it holds.
  using HeldExperts = std::function<Tensor(const Tensor& x_ND, const blocks::Routing& routing)>;
  /// The sum of what each token's chosen experts of a layer give, wherever they are held: [T', D].
  virtual Tensor experts(int64_t layer, const Tensor& x_TD, const blocks::Routing& routing,
                         const HeldExperts& held) const {
    return held(x_TD, routing);
  }

  /// Attention over the whole row, from the queries, keys and values of the tokens that this device attends from.
  virtual kernels::AttentionResult attention_forward(const Tensor& qkv_TE, const PackedLayout& layout,
                                                     const kernels::AttentionShape& shape) const;
  virtual Tensor attention_backward(const Tensor& d_output, const Tensor& qkv_TE,
                                    const kernels::AttentionResult& result, const PackedLayout& layout,
                                    const kernels::AttentionShape& shape) const;
  /// Positions of those tokens.
  virtual std::vector<int32_t> positions(const PackedLayout& layout) const { return layout.positions(); }
};

}  // namespace troupe
