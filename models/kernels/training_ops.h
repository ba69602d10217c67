// The training kernels as functions of tensors: CPU tensors in fp32 and bf16 go to the table of this processor, in
// parallel over rows; other devices and dtypes to plain tensor operations. None is differentiable by itself.
//
// Shape legend: R rows, D width, F MLP size, T tokens, d head size.
#pragma once

#include "models/kernels/training_kernels.h"
#include "models/torch.h"

namespace troupe::kernels {

/// Whether the tables have kernels for such tensors.
bool has_training_kernels(const Tensor& x);
/// The kernels of a tensor's element type.
const ElementKernels& element_kernels(const Tensor& x);

struct NormResult {
  Tensor y_RD, inverse_rms_R;  // fp32 (float64 for float64)
  Tensor sum_RD;               // x + residual; x itself without residual
};
/// RMSNorm of x (+ residual where defined), times weight + offset. `plainly`: the squares are added up in the order of
/// at::mean, in several passes.
NormResult rms_norm(const Tensor& x_RD, const Tensor& residual_RD, const Tensor& weight_D, double eps,
                    double offset = 0, bool plainly = false);

/// {gradient of x (+ d_residual where defined), gradient of the weight}.
std::pair<Tensor, Tensor> rms_norm_backward(const Tensor& d_y_RD, const Tensor& x_RD, const Tensor& weight_D,
                                            const Tensor& inverse_rms_R, const Tensor& d_residual_RD,
                                            double offset = 0);

/// gate and up side by side [R, 2 F] -> silu(gate) * up [R, F].
Tensor swiglu(const Tensor& gate_up);
/// {silu(gate) * up, gradient of gate_up}.
std::pair<Tensor, Tensor> swiglu_backward(const Tensor& gate_up, const Tensor& d_product);

/// Rotates the first `num_heads` heads of `head_dim` of every row of buffer [T, any] in place by table_Td (cosines,
/// then sines): the first d dimensions of each, in pairs of one of each half or, interleaved, of neighbours.
void rope_(const Tensor& buffer, int64_t num_heads, int64_t head_dim, const Tensor& table_Td, bool interleaved,
           bool inverse);

}  // namespace troupe::kernels
