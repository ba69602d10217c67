// Token embedding. The gradient is dense (as autograd of a leaf needs it); repeated tokens add up in a fixed order.
#include "models/blocks/embedding.h"

#include "base/error.h"

namespace troupe::blocks {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& tokens, const Tensor& weight) {
    context->save_for_backward({tokens});
    context->saved_data["num_rows"] = weight.size(0);
    return weight.index_select(0, tokens);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor tokens = context->get_saved_variables()[0];
    const Tensor d_weight =
        at::embedding_dense_backward(gradients[0], tokens, context->saved_data["num_rows"].toInt(), -1, false);
    return {Tensor(), d_weight};
  }
};

}  // namespace

Tensor embedding(const Tensor& tokens_T, const Tensor& weight_VD) {
  const Tensor tokens = tokens_T.to(at::kLong).contiguous();
  if (tokens.is_cpu()) {  // a device would report a bad id late and far away; checking there costs a synchronisation
    const auto* ids = tokens.const_data_ptr<int64_t>();
    for (int64_t t = 0; t < tokens.numel(); ++t) {
      require(ids[t] >= 0 && ids[t] < weight_VD.size(0), "token id ", ids[t], " at position ", t,
              " is outside of the vocabulary of ", weight_VD.size(0));
    }
  }
  return EmbeddingFunction::apply(tokens, weight_VD);
}

}  // namespace troupe::blocks
