// Chooses the attention kernel by device and dtype, and shares the work of the CPU kernels among threads.
#include "models/kernels/attention.h"

#include <atomic>

#include "base/error.h"
#include "models/kernels/attention_reference.h"
#include "models/kernels/training_ops.h"

namespace troupe::kernels {
namespace {

AttentionArguments arguments(const Tensor& qkv_TE, const AttentionResult& result, const AttentionShape& shape) {
  AttentionArguments a;
  a.qkv = qkv_TE.const_data_ptr();
  a.output = result.output.mutable_data_ptr();
  a.log_sum_exp = result.log_sum_exp.mutable_data_ptr<float>();
  a.num_tokens = qkv_TE.size(0);
  a.num_heads = shape.num_heads;
  a.num_key_value_heads = shape.num_key_value_heads;
  a.head_dim = shape.head_dim;
  a.scale = static_cast<float>(shape.scale);
  a.window = shape.window > 0 ? shape.window : std::numeric_limits<int64_t>::max();
  a.chunk = shape.chunk > 0 ? shape.chunk : std::numeric_limits<int64_t>::max();
  return a;
}

AttentionSegment describe(const PackedLayout& layout, const Segment& segment) {
  AttentionSegment result{segment.begin, segment.length};
  if (segment.parent >= 0) {
    result.parent_begin = layout.segments[segment.parent].begin;
    result.parent_length = layout.segments[segment.parent].length;
  }
  return result;
}

/// Runs `work(task)` for every task, the most expensive first, each thread taking the next one when it is free.
template <class Work>
void run_tasks(std::vector<std::pair<double, int64_t>> costs, const Work& work) {
  std::sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::atomic<size_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
    for (size_t task = next++; task < costs.size(); task = next++) work(costs[task].second);
  });
}

}  // namespace

AttentionResult attention_forward(const Tensor& qkv_TE, const PackedLayout& layout, const AttentionShape& shape) {
  if (!has_training_kernels(qkv_TE)) return attention_forward_reference(qkv_TE, layout, shape);
  require(qkv_TE.is_contiguous(), "attention needs a contiguous row of queries, keys and values");
  const int64_t num_tokens = qkv_TE.size(0);
  const AttentionResult result = {at::empty({num_tokens, shape.num_heads * shape.head_dim}, qkv_TE.options()),
                                  at::empty({shape.num_heads, num_tokens}, qkv_TE.options().dtype(at::kFloat))};
  const AttentionArguments a = arguments(qkv_TE, result, shape);
  const auto kernel = element_kernels(qkv_TE).attention_forward;
  std::vector<std::pair<double, int64_t>> costs;
  for (size_t s = 0; s < layout.segments.size(); ++s) {
    const AttentionSegment segment = describe(layout, layout.segments[s]);
    const double cost = segment.length * (segment.parent_length + 0.5 * segment.length);
    for (int64_t g = 0; g < shape.num_key_value_heads; ++g) {
      costs.emplace_back(cost, static_cast<int64_t>(s) * shape.num_key_value_heads + g);
    }
  }
  run_tasks(std::move(costs), [&](int64_t task) {
    const Segment& segment = layout.segments[task / shape.num_key_value_heads];
    kernel(a, describe(layout, segment), task % shape.num_key_value_heads);
  });
  return result;
}

Tensor attention_backward(const Tensor& d_output, const Tensor& qkv_TE, const AttentionResult& result,
                          const PackedLayout& layout, const AttentionShape& shape) {
  if (!has_training_kernels(qkv_TE)) return attention_backward_reference(d_output, qkv_TE, result, layout, shape);
  require(d_output.is_contiguous(), "attention's backward needs a contiguous gradient");
  const Tensor d_qkv = at::empty_like(qkv_TE);
  AttentionArguments a = arguments(qkv_TE, result, shape);
  a.d_output = d_output.const_data_ptr();
  a.d_qkv = d_qkv.mutable_data_ptr();
  const auto kernel = element_kernels(qkv_TE).attention_backward;
  // Trees: a root with its children; the cost of a tree is the number of pairs that see each other.
  std::vector<std::vector<AttentionSegment>> trees;
  std::vector<double> tree_costs;
  std::vector<size_t> tree_of(layout.segments.size());
  for (size_t s = 0; s < layout.segments.size(); ++s) {
    const Segment& segment = layout.segments[s];
    if (segment.parent < 0) {
      tree_of[s] = trees.size();
      trees.emplace_back();
      tree_costs.push_back(0);
    } else {
      tree_of[s] = tree_of[segment.parent];
    }
    const AttentionSegment described = describe(layout, segment);
    trees[tree_of[s]].push_back(described);
    tree_costs[tree_of[s]] += described.length * (described.parent_length + 0.5 * described.length);
  }
  std::vector<std::pair<double, int64_t>> costs;
  for (size_t t = 0; t < trees.size(); ++t) {
    for (int64_t g = 0; g < shape.num_key_value_heads; ++g) {
      costs.emplace_back(tree_costs[t], static_cast<int64_t>(t) * shape.num_key_value_heads + g);
    }
  }
  run_tasks(std::move(costs), [&](int64_t task) {
    const auto& tree = trees[task / shape.num_key_value_heads];
    kernel(a, tree.data(), static_cast<int64_t>(tree.size()), task % shape.num_key_value_heads);
  });
  return d_qkv;
}

}  // namespace troupe::kernels
