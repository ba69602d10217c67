// What the network's seam (models/exchange.h) does on one rank of a mesh: vocabulary-parallel embedding, tensor
// parallel with or without sequence parallel, context parallel by ring attention, and experts on other ranks.
#pragma once

#include "models/exchange.h"
#include "parallel/context_tokens.h"
#include "parallel/expert_load.h"
#include "parallel/plan.h"
#include "parallel/rank_groups.h"
#include "parallel/router_balance.h"

namespace troupe {

class RankExchange : public Exchange {
 public:
  /// `head_tail`: context ranks take tokens from both ends of a row. `load` and `balance`, which may be null, are told
  /// what routers choose. The groups must outlive this.
  RankExchange(const ParallelPlan& plan, const RankGroups& groups, bool head_tail, std::shared_ptr<ExpertLoad> load,
               std::shared_ptr<RouterBalance> balance);

  /// Whether this rank has every token of its rows, which are then as they were given.
  bool has_whole_rows() const { return tensor_ == nullptr && context_ == nullptr; }
  /// This rank's tokens of a row of `num_tokens`, where it has not all.
  ContextTokens tokens(int64_t num_tokens) const;
  /// Rows of the activations between layers: this rank's tokens, or with sequence parallel its part of them.
  int64_t num_kept(int64_t num_tokens) const;
  /// Which of them are tokens of the row, not padding: bool [T']; undefined: all.
  Tensor are_tokens(int64_t num_tokens) const;

  Tensor embed(const Tensor& tokens_T, const Tensor& weight_VD) const override;
  Tensor enter(const Tensor& x_TD) const override;
  Tensor leave(const Tensor& y_TD) const override;
  Tensor experts(int64_t layer, const Tensor& x_TD, const blocks::Routing& routing,
                 const HeldExperts& held) const override;
  bool sums_parts() const override { return tensor_ != nullptr; }
  kernels::AttentionResult attention_forward(const Tensor& qkv_TE, const PackedLayout& layout,
                                             const kernels::AttentionShape& shape) const override;
  Tensor attention_backward(const Tensor& d_output, const Tensor& qkv_TE, const kernels::AttentionResult& result,
                            const PackedLayout& layout, const kernels::AttentionShape& shape) const override;
  std::vector<int32_t> positions(const PackedLayout& layout) const override;

 private:
  Collectives* tensor_;
  Collectives* context_;
  Collectives* experts_;
  bool sequence_parallel_, head_tail_;
  std::shared_ptr<ExpertLoad> load_;
  std::shared_ptr<RouterBalance> balance_;
  int64_t vocabulary_begin_, vocabulary_size_, num_experts_;
};

}  // namespace troupe
