// Norm, SwiGLU and rope over tensors: the kernel tables, and their plain forms.
#include "models/kernels/training_ops.h"

#include "base/error.h"

namespace troupe::kernels {
namespace {

constexpr int64_t kRowsPerTask = 16;

at::ScalarType wide_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// Address of a row, whatever the element type.
const char* row_of(const Tensor& x, int64_t row) {
  return static_cast<const char*>(x.const_data_ptr()) + row * x.stride(0) * static_cast<int64_t>(x.element_size());
}
char* mutable_row_of(const Tensor& x, int64_t row) { return const_cast<char*>(row_of(x, row)); }

NormResult plain_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, double offset) {
  const Tensor sum = residual.defined() ? x + residual : x;
  const Tensor wide = sum.to(wide_type(x));
  const Tensor inverse_rms = (wide.square().mean(1) + eps).rsqrt();
  return {(wide * inverse_rms.unsqueeze(1) * (weight.to(wide.scalar_type()) + offset)).to(x.scalar_type()), inverse_rms,
          sum};
}

std::pair<Tensor, Tensor> plain_rms_norm_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight,
                                                  const Tensor& inverse_rms, const Tensor& d_residual, double offset) {
  const auto type = wide_type(x);
  const Tensor normed = x.to(type) * inverse_rms.unsqueeze(1), wide_d_y = d_y.to(type);
  const Tensor d_normed = wide_d_y * (weight.to(type) + offset);
  Tensor d_x = inverse_rms.unsqueeze(1) * (d_normed - normed * (d_normed * normed).mean(1, true));
  if (d_residual.defined()) d_x = d_x + d_residual.to(type);
  return {d_x.to(x.scalar_type()), (wide_d_y * normed).sum(0).to(weight.scalar_type())};
}

std::pair<Tensor, Tensor> plain_swiglu_backward(const Tensor& gate_up, const Tensor& d_product) {
  const int64_t size = gate_up.size(1) / 2;
  const auto type = wide_type(gate_up);
  const Tensor gate = gate_up.narrow(1, 0, size).to(type), up = gate_up.narrow(1, size, size).to(type);
  const Tensor d = d_product.to(type), sigmoid = at::sigmoid(gate), silu = gate * sigmoid;
  const Tensor d_gate = d * up * (sigmoid + silu * (1 - sigmoid)), d_up = d * silu;
  return {(silu * up).to(gate_up.scalar_type()), at::cat({d_gate, d_up}, 1).to(gate_up.scalar_type())};
}

void plain_rope_(const Tensor& buffer, int64_t num_heads, int64_t head_dim, const Tensor& table, bool interleaved,
                 bool inverse) {
  const int64_t rotated = table.size(1), half = rotated / 2;
  const Tensor heads =
      buffer.narrow(1, 0, num_heads * head_dim).view({buffer.size(0), num_heads, head_dim}).narrow(2, 0, rotated);
  const Tensor cosines = table.narrow(1, 0, half).unsqueeze(1), sines = table.narrow(1, half, half).unsqueeze(1);
  const Tensor signed_sines = inverse ? -sines : sines;
  const Tensor x = heads.to(table.scalar_type());
  const auto part = [&](int64_t which) {
    return interleaved ? x.slice(2, which, rotated, 2) : x.narrow(2, which * half, half);
  };
  const Tensor first = part(0) * cosines - part(1) * signed_sines, second = part(1) * cosines + part(0) * signed_sines;
  heads.copy_(interleaved ? at::stack({first, second}, 3).flatten(2) : at::cat({first, second}, 2));
}

}  // namespace

bool has_training_kernels(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

const ElementKernels& element_kernels(const Tensor& x) {
  return x.scalar_type() == at::kFloat ? training_kernels().float32 : training_kernels().bfloat16;
}

NormResult rms_norm(const Tensor& x_RD, const Tensor& residual_RD, const Tensor& weight_D, double eps, double offset,
                    bool plainly) {
  if (plainly || !has_training_kernels(x_RD)) return plain_rms_norm(x_RD, residual_RD, weight_D, eps, offset);
  const Tensor x = x_RD.contiguous(), residual = residual_RD.defined() ? residual_RD.contiguous() : residual_RD;
  const Tensor weight = weight_D.contiguous(), y = at::empty_like(x), sum = residual.defined() ? at::empty_like(x) : x;
  const Tensor inverse_rms = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const auto kernel = element_kernels(x).rms_norm;
  at::parallel_for(0, x.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    kernel(row_of(x, begin), residual.defined() ? row_of(residual, begin) : nullptr, weight.const_data_ptr(),
           static_cast<float>(offset), end - begin, x.size(1), static_cast<float>(eps), mutable_row_of(sum, begin),
           mutable_row_of(y, begin), inverse_rms.mutable_data_ptr<float>() + begin);
  });
  return {y, inverse_rms, sum};
}

std::pair<Tensor, Tensor> rms_norm_backward(const Tensor& d_y_RD, const Tensor& x_RD, const Tensor& weight_D,
                                            const Tensor& inverse_rms_R, const Tensor& d_residual_RD, double offset) {
  if (!has_training_kernels(x_RD)) {
    return plain_rms_norm_backward(d_y_RD, x_RD, weight_D, inverse_rms_R, d_residual_RD, offset);
  }
  const Tensor x = x_RD.contiguous(), d_y = d_y_RD.contiguous(), weight = weight_D.contiguous();
  const Tensor d_residual = d_residual_RD.defined() ? d_residual_RD.contiguous() : d_residual_RD;
  const Tensor d_x = at::empty_like(x);
  const int64_t rows = x.size(0), width = x.size(1);
  // A fixed number of row ranges with a partial sum each: the result does not depend on the number of threads.
  const int64_t num_parts = std::max<int64_t>(1, std::min<int64_t>(16, rows / kRowsPerTask));
  const Tensor parts = at::zeros({num_parts, width}, x.options().dtype(at::kFloat));
  const auto kernel = element_kernels(x).rms_norm_backward;
  at::parallel_for(0, num_parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = rows * part / num_parts, end = rows * (part + 1) / num_parts;
      kernel(row_of(d_y, begin), row_of(x, begin), weight.const_data_ptr(), static_cast<float>(offset),
             inverse_rms_R.const_data_ptr<float>() + begin, d_residual.defined() ? row_of(d_residual, begin) : nullptr,
             end - begin, width, mutable_row_of(d_x, begin), parts.mutable_data_ptr<float>() + part * width);
    }
  });
  return {d_x, parts.sum(0).to(weight.scalar_type())};
}

Tensor swiglu(const Tensor& gate_up) {
  const int64_t size = gate_up.size(1) / 2;
  if (!has_training_kernels(gate_up)) {
    const Tensor wide = gate_up.to(wide_type(gate_up));
    return (at::silu(wide.narrow(1, 0, size)) * wide.narrow(1, size, size)).to(gate_up.scalar_type());
  }
  require(gate_up.is_contiguous(), "swiglu needs a contiguous input");
  const Tensor product = at::empty({gate_up.size(0), size}, gate_up.options());
  const auto kernel = element_kernels(gate_up).swiglu;
  at::parallel_for(0, gate_up.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    kernel(row_of(gate_up, begin), end - begin, size, mutable_row_of(product, begin));
  });
  return product;
}

std::pair<Tensor, Tensor> swiglu_backward(const Tensor& gate_up, const Tensor& d_product) {
  if (!has_training_kernels(gate_up)) return plain_swiglu_backward(gate_up, d_product);
  require(gate_up.is_contiguous() && d_product.is_contiguous(), "swiglu's backward needs contiguous inputs");
  const Tensor product = at::empty_like(d_product), d_gate_up = at::empty_like(gate_up);
  const auto kernel = element_kernels(gate_up).swiglu_backward;
  at::parallel_for(0, gate_up.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    kernel(row_of(gate_up, begin), row_of(d_product, begin), end - begin, gate_up.size(1) / 2,
           mutable_row_of(product, begin), mutable_row_of(d_gate_up, begin));
  });
  return {product, d_gate_up};
}

void rope_(const Tensor& buffer, int64_t num_heads, int64_t head_dim, const Tensor& table_Td, bool interleaved,
           bool inverse) {
  if (!has_training_kernels(buffer)) {
    return plain_rope_(buffer, num_heads, head_dim, table_Td, interleaved, inverse);
  }
  require(buffer.stride(1) == 1 && table_Td.is_contiguous(), "rope needs dense rows");
  const auto kernel = element_kernels(buffer).rope;
  const int64_t rotated = table_Td.size(1);
  at::parallel_for(0, buffer.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    kernel(mutable_row_of(buffer, begin), end - begin, buffer.stride(0), num_heads, head_dim, rotated, interleaved,
           table_Td.const_data_ptr<float>() + begin * rotated, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace troupe::kernels
