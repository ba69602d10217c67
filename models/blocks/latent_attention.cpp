// Latent attention, composed of differentiable blocks.
#include "models/blocks/latent_attention.h"

#include "models/blocks/linear.h"
#include "models/blocks/norm.h"
#include "models/kernels/training_ops.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Rotates every head of x [T, N, r].
struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& table_Td, bool interleaved) {
    context->save_for_backward({table_Td});
    context->saved_data["interleaved"] = interleaved;
    return rotated(x, table_Td, interleaved, false);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor table_Td = context->get_saved_variables()[0];
    return {rotated(gradients[0], table_Td, context->saved_data["interleaved"].toBool(), true), Tensor(), Tensor()};
  }
  static Tensor rotated(const Tensor& x, const Tensor& table_Td, bool interleaved, bool inverse) {
    const Tensor y = at::empty(x.sizes(), x.options()).copy_(x);
    kernels::rope_(y.view({x.size(0), -1}), x.size(1), x.size(2), table_Td, interleaved, inverse);
    return y;
  }
};

}  // namespace

int64_t latent_head_dim(const LatentConfig& config) {
  const int64_t size = std::max(config.query_dim(), config.value_dim);
  return size + size % 2;
}

Tensor latent_attention(const Tensor& x_TD, const LatentWeights& weights, const LatentConfig& config,
                        const AttentionContextPointer& context) {
  const int64_t num_tokens = x_TD.size(0), num_heads = context->shape.num_heads, size = context->shape.head_dim;
  const auto heads = [&](const Tensor& x) { return x.view({num_tokens, num_heads, -1}); };
  const auto rope = [&](const Tensor& x) {
    return RopeFunction::apply(x, context->rope_table_Td, context->rope_interleaved);
  };
  Tensor query_input = x_TD;
  if (weights.q_down.defined()) {
    query_input = rms_norm(blocks::linear(x_TD, weights.q_down, weights.q_down_bias), weights.q_norm, config.norm_eps);
  }
  const Tensor query = heads(blocks::linear(query_input, weights.q, Tensor()));
  const Tensor compressed = blocks::linear(x_TD, weights.kv_down, weights.kv_down_bias);
  const Tensor latent =
      rms_norm(compressed.narrow(1, 0, config.key_value_rank).contiguous(), weights.kv_norm, config.norm_eps);
  const Tensor shared_key = rope(compressed.narrow(1, config.key_value_rank, config.rotary_dim).unsqueeze(1));
  const Tensor key_value = heads(blocks::linear(latent, weights.kv, Tensor()));

  const Tensor plain_query = query.narrow(2, 0, config.plain_dim);
  const Tensor rotated_query = rope(query.narrow(2, config.plain_dim, config.rotary_dim));
  const Tensor plain_key = key_value.narrow(2, 0, config.plain_dim);
  const Tensor value = key_value.narrow(2, config.plain_dim, config.value_dim);
  const Tensor key_padding = at::zeros({num_tokens, num_heads, size - config.query_dim()}, x_TD.options());
  const Tensor value_padding = at::zeros({num_tokens, num_heads, size - config.value_dim}, x_TD.options());
  const Tensor queries = at::cat({plain_query, rotated_query, key_padding}, 2);
  const Tensor keys =
      at::cat({plain_key, shared_key.expand({num_tokens, num_heads, config.rotary_dim}), key_padding}, 2);
  const Tensor values = at::cat({value, value_padding}, 2);
  const Tensor projected = at::cat({queries, keys, values}, 1).view({num_tokens, -1});
  // What is rotated is rotated already.
  auto plain = std::make_shared<AttentionContext>(*context);
  plain->rope_table_Td = Tensor();
  return heads(attend(projected, {}, {}, plain)).narrow(2, 0, config.value_dim).reshape({num_tokens, -1});
}

}  // namespace troupe::blocks
