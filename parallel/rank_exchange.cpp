#include "parallel/rank_exchange.h"

#include "base/error.h"
#include "parallel/expert_parallel.h"
#include "parallel/ring_attention.h"
#include "parallel/tensor_parallel.h"

namespace troupe {

RankExchange::RankExchange(const ParallelPlan& plan, const RankGroups& groups, bool head_tail,
                           std::shared_ptr<ExpertLoad> load, std::shared_ptr<RouterBalance> balance)
    : tensor_(groups.tensor()),
      context_(groups.context()),
      experts_(groups.experts()),
      sequence_parallel_(tensor_ != nullptr && plan.options().sequence_parallel),
      head_tail_(head_tail),
      load_(std::move(load)),
      balance_(std::move(balance)),
      vocabulary_begin_(plan.vocabulary_begin()),
      vocabulary_size_(plan.whole_config().vocab_size),
      num_experts_(plan.whole_config().moe.num_experts) {}

ContextTokens RankExchange::tokens(int64_t num_tokens) const {
  const int64_t multiple = sequence_parallel_ ? tensor_->size() : 1;
  return {num_tokens, context_ == nullptr ? 0 : context_->rank(), context_ == nullptr ? 1 : context_->size(),
          context_ != nullptr && head_tail_, multiple};
}

int64_t RankExchange::num_kept(int64_t num_tokens) const {
  if (has_whole_rows()) return num_tokens;
  return tokens(num_tokens).num_local() / (sequence_parallel_ ? tensor_->size() : 1);
}

Tensor RankExchange::are_tokens(int64_t num_tokens) const {
  if (has_whole_rows()) return {};
  const Tensor are_T = at::tensor(tokens(num_tokens).places(), at::kLong).lt(num_tokens);
  if (!sequence_parallel_) return are_T;
  const int64_t kept = num_kept(num_tokens);
  return are_T.narrow(0, tensor_->rank() * kept, kept);
}

Tensor RankExchange::embed(const Tensor& tokens_T, const Tensor& weight_VD) const {
  if (has_whole_rows()) return Exchange::embed(tokens_T, weight_VD);
  const auto own = tokens(tokens_T.numel());
  const Tensor ids = tokens_T.to(at::kLong);
  if (ids.is_cpu()) {
    const bool is_inside =
        ids.numel() == 0 || (ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < vocabulary_size_);
    require(is_inside, "a token id of the row is outside of the vocabulary of ", vocabulary_size_);
  }
  const Tensor padded = at::zeros({own.num_padded()}, ids.options());
  padded.narrow(0, 0, ids.numel()).copy_(ids);
  const Tensor local = padded.index_select(0, at::tensor(own.places(), at::kLong).to(ids.device()));
  if (tensor_ == nullptr) return Exchange::embed(local, weight_VD);
  return leave(embed_part(local, weight_VD, vocabulary_begin_));
}

Tensor RankExchange::enter(const Tensor& x_TD) const {
  return tensor_ == nullptr ? x_TD : enter_tensor_parallel(x_TD, *tensor_, sequence_parallel_);
}

Tensor RankExchange::leave(const Tensor& y_TD) const {
  return tensor_ == nullptr ? y_TD : leave_tensor_parallel(y_TD, *tensor_, sequence_parallel_);
}

Tensor RankExchange::experts(int64_t layer, const Tensor& x_TD, const blocks::Routing& routing,
                             const HeldExperts& held) const {
  if (load_ != nullptr) load_->add(layer, routing.experts_TK);
  const auto balanced = balance_ == nullptr ? routing : balance_->attach(routing);
  if (experts_ == nullptr) return Exchange::experts(layer, x_TD, balanced, held);
  return experts_of_ranks(x_TD, balanced, num_experts_, *experts_, held);
}

kernels::AttentionResult RankExchange::attention_forward(const Tensor& qkv_TE, const PackedLayout& layout,
                                                         const kernels::AttentionShape& shape) const {
  if (has_whole_rows()) return Exchange::attention_forward(qkv_TE, layout, shape);
  const auto own = tokens(layout.num_tokens);
  const auto padded = padded_layout(layout, own.num_padded());
  if (context_ == nullptr) return Exchange::attention_forward(qkv_TE, padded, shape);
  require(shape.window == 0, "a sliding window of ", shape.window,
          " tokens over parallelism.context_parallel_degree = ", context_->size(), " is not supported");
  return ring_attention_forward(qkv_TE, padded, shape, own, *context_);
}

Tensor RankExchange::attention_backward(const Tensor& d_output, const Tensor& qkv_TE,
                                        const kernels::AttentionResult& result, const PackedLayout& layout,
                                        const kernels::AttentionShape& shape) const {
  if (has_whole_rows()) return Exchange::attention_backward(d_output, qkv_TE, result, layout, shape);
  const auto own = tokens(layout.num_tokens);
  const auto padded = padded_layout(layout, own.num_padded());
  if (context_ == nullptr) return Exchange::attention_backward(d_output, qkv_TE, result, padded, shape);
  return ring_attention_backward(d_output, qkv_TE, result, padded, shape, own, *context_);
}

std::vector<int32_t> RankExchange::positions(const PackedLayout& layout) const {
  if (has_whole_rows()) return Exchange::positions(layout);
  const auto own = tokens(layout.num_tokens);
  const auto all = padded_layout(layout, own.num_padded()).positions();
  std::vector<int32_t> local;
  for (const int64_t place : own.places()) local.push_back(all[static_cast<size_t>(place)]);
  return local;
}

}  // namespace troupe
