// The gated MLP of a layer.
#include <algorithm>

#include "rollout/forward_state.h"

namespace troupe {

template <class T>
void join_gate_up(const DecodeKernels& kernels, const GateRule& rule, float* gate, const float* up, int64_t columns,
                  T* out) {
  const auto& typed = typed_kernels<T>(kernels);
  if (rule.activation == Activation::kSilu && rule.clamp_limit == 0) {
    typed.swiglu(gate, up, columns, out);
    return;
  }
  float exponents[kPanelColumns] = {}, product[kPanelColumns];
  if (rule.clamp_limit > 0) {
    for (int64_t i = 0; i < columns; ++i) gate[i] = std::min(gate[i], rule.clamp_limit);
    kernels.exp_into(gate, columns, -rule.swish_factor, 0.0f, exponents);
    for (int64_t i = 0; i < columns; ++i) {
      const float bounded = std::clamp(up[i], -rule.clamp_limit, rule.clamp_limit);
      product[i] = (bounded + 1) * gate[i] / (1.0f + exponents[i]);
    }
  } else if (rule.activation == Activation::kSilu) {
    kernels.exp_into(gate, columns, -1.0f, 0.0f, exponents);
    for (int64_t i = 0; i < columns; ++i) product[i] = gate[i] / (1.0f + exponents[i]) * up[i];
  } else if (rule.activation == Activation::kGeluTanh) {
    // (1 + tanh(u)) / 2 is the logistic function of 2 u.
    constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
    for (int64_t i = 0; i < columns; ++i) {
      exponents[i] = 2 * kRoot * (gate[i] + 0.044715f * gate[i] * gate[i] * gate[i]);
    }
    kernels.exp_into(exponents, columns, -1.0f, 0.0f, exponents);
    for (int64_t i = 0; i < columns; ++i) product[i] = gate[i] / (1.0f + exponents[i]) * up[i];
  } else {
    constexpr float kInverseRoot = 0.7071067811865476f;  // 1 / sqrt(2)
    for (int64_t i = 0; i < columns; ++i) {
      product[i] = 0.5f * gate[i] * (1.0f + std::erf(gate[i] * kInverseRoot)) * up[i];
    }
  }
  typed.convert(product, columns, out);
}

template <class T>
void gate_panel(const DecodeKernels& kernels, const GateRule& rule, const PackedMlp<T>& mlp, int64_t pair, const T* x,
                int64_t x_stride, int64_t count, float* scratch, T* out, int64_t out_stride) {
  const auto& typed = typed_kernels<T>(kernels);
  const auto& matrix = mlp.gate_up;
  const int64_t column = pair * kPanelColumns, columns = std::min(kPanelColumns, mlp.size - column);
  float* up = scratch + kRowChunk * kPanelColumns;
  for (int64_t first = 0; first < count; first += kRowChunk) {
    const int64_t rows = std::min(kRowChunk, count - first);
    const T* input = x + first * x_stride;
    typed.gemm_panel(input, x_stride, rows, matrix.panel(2 * pair), matrix.depth, scratch, kPanelColumns);
    typed.gemm_panel(input, x_stride, rows, matrix.panel(2 * pair + 1), matrix.depth, up, kPanelColumns);
    for (int64_t r = 0; r < rows; ++r) {
      float* gate_row = scratch + r * kPanelColumns;
      float* up_row = up + r * kPanelColumns;
      if (!mlp.gate_bias.empty()) {
        kernels.add(mlp.gate_bias.data() + column, columns, gate_row);
        kernels.add(mlp.up_bias.data() + column, columns, up_row);
      }
      join_gate_up(kernels, rule, gate_row, up_row, columns, out + (first + r) * out_stride + column);
    }
  }
}

template <class T>
void run_mlp(ForwardState<T>& state, Walk& walk, int64_t layer_index) {
  const auto& layer = state.model->layers[static_cast<size_t>(layer_index)];
  float* scratch = state.per_thread[static_cast<size_t>(walk.thread)].product.data();
  const GateRule rule = {state.config.activation};
  state.share(walk, layer.mlp.gate_up.num_panels / 2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      gate_panel(state.kernels, rule, layer.mlp, pair, state.input.row(0), state.input.stride, state.num_rows(),
                 scratch, state.activation.row(0), state.activation.stride);
    }
  });
  state.add_product(walk, layer.mlp.down, state.activation.row(0), state.activation.stride, layer.mlp.down_bias,
                    layer.mlp_output_norm);
}

template void gate_panel(const DecodeKernels&, const GateRule&, const PackedMlp<float>&, int64_t, const float*, int64_t,
                         int64_t, float*, float*, int64_t);
template void gate_panel(const DecodeKernels&, const GateRule&, const PackedMlp<Bf16>&, int64_t, const Bf16*, int64_t,
                         int64_t, float*, Bf16*, int64_t);
template void run_mlp(ForwardState<float>&, Walk&, int64_t);
template void run_mlp(ForwardState<Bf16>&, Walk&, int64_t);

}  // namespace troupe
