// Every table of CPU training kernels that this processor can run, against plain tensor operations in float64.
#include "models/kernels/training_kernels.h"

#include "base/cpu.h"
#include "models/kernels/attention_reference.h"
#include "models/kernels/ops.h"
#include "models/kernels/training_ops.h"
#include "tests/doctest.h"
#include "tests/models/tiny_model.h"

namespace troupe {
namespace {

using kernels::AttentionArguments;
using kernels::AttentionSegment;
using kernels::ElementKernels;
using kernels::TrainingKernels;
using testing::relative_difference;

std::vector<const TrainingKernels*> tables() {
  std::vector<const TrainingKernels*> result = {&kernels::kTrainingGeneric};
  if (cpu_features().avx2) result.push_back(&kernels::kTrainingAvx2);
  if (cpu_features().avx512) result.push_back(&kernels::kTrainingAvx512);
  if (cpu_features().avx512_bf16) result.push_back(&kernels::kTrainingAvx512Bf16);
  return result;
}

/// Runs `check(kernels, dtype, tolerance)` for every table and element type.
template <class Check>
void for_each_table(const Check& check) {
  for (const TrainingKernels* table : tables()) {
    CAPTURE(std::string(table->name));
    SUBCASE(table->name) {
      check(table->float32, at::kFloat, 2e-6);
      check(table->bfloat16, at::kBFloat16, 1e-2);
    }
  }
}

}  // namespace

TEST_CASE("attention kernels agree with the plain form, forward and backward") {
  for_each_table([](const ElementKernels& table, at::ScalarType dtype, double tolerance) {
    for (const auto& [head_dim, window] : {std::pair<int64_t, int64_t>{12, 0},
                                           {16, 0},
                                           {64, 0},
                                           {80, 0},
                                           {12, 1},
                                           {16, 7},
                                           {64, 64},
                                           {16, 65},
                                           {12, -7},
                                           {16, -64},
                                           {16, -90},
                                           {16, 129},
                                           {12, 1000}}) {
      CAPTURE(head_dim);
      CAPTURE(window);
      PackedLayout layout{{{0, 70, -1}, {70, 1, 0}, {71, 64, 0}, {135, 5, -1}, {140, 150, -1}, {290, 33, 4}}, 323};
      // A negative one stands for chunks of as many positions.
      const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
      const kernels::AttentionShape shape{
          4, 2, head_dim, scale, std::max<int64_t>(window, 0), std::max<int64_t>(-window, 0)};
      at::manual_seed(head_dim);
      const Tensor qkv = at::randn({layout.num_tokens, 8 * head_dim}).to(dtype);
      const Tensor d_output = at::randn({layout.num_tokens, 4 * head_dim}).to(dtype);
      const auto wanted = kernels::attention_forward_reference(qkv.to(at::kDouble), layout, shape);
      const Tensor d_wanted =
          kernels::attention_backward_reference(d_output.to(at::kDouble), qkv.to(at::kDouble), wanted, layout, shape);
      const Tensor output = at::full({layout.num_tokens, 4 * head_dim}, NAN, qkv.options());
      const Tensor sums = at::full({4, layout.num_tokens}, NAN), d_qkv = at::full_like(qkv, NAN);
      AttentionArguments a;
      a.qkv = qkv.const_data_ptr();
      a.output = output.mutable_data_ptr();
      a.log_sum_exp = sums.mutable_data_ptr<float>();
      a.d_output = d_output.const_data_ptr();
      a.d_qkv = d_qkv.mutable_data_ptr();
      a.num_tokens = layout.num_tokens;
      a.num_heads = 4, a.num_key_value_heads = 2, a.head_dim = head_dim;
      a.scale = static_cast<float>(shape.scale);
      if (window > 0) a.window = window;
      if (window < 0) a.chunk = -window;
      const std::vector<std::vector<AttentionSegment>> trees = {
          {{0, 70, 0, 0}, {70, 1, 0, 70}, {71, 64, 0, 70}}, {{135, 5, 0, 0}}, {{140, 150, 0, 0}, {290, 33, 140, 150}}};
      for (int64_t g = 0; g < 2; ++g) {
        for (const auto& tree : trees) {
          for (const auto& segment : tree) table.attention_forward(a, segment, g);
        }
        for (const auto& tree : trees) table.attention_backward(a, tree.data(), static_cast<int64_t>(tree.size()), g);
      }
      CHECK(relative_difference(output, wanted.output) < tolerance);
      CHECK(relative_difference(sums, wanted.log_sum_exp) < tolerance);
      CHECK(relative_difference(d_qkv, d_wanted) < 2 * tolerance);
    }
  });
}

TEST_CASE("norm, SwiGLU and rope kernels agree with float64") {
  for_each_table([](const ElementKernels& table, at::ScalarType dtype, double tolerance) {
    at::manual_seed(1);
    const int64_t rows = 5, width = 70;
    const Tensor x = at::randn({rows, width}).to(dtype), residual = at::randn({rows, width}).to(dtype);
    const Tensor weight = (at::randn({width}) + 1).to(dtype), d_y = at::randn({rows, width}).to(dtype);
    const Tensor sum = at::empty_like(x), y = at::empty_like(x), d_x = at::empty_like(x);
    const Tensor scale = at::empty({rows}), d_weight = at::zeros({width});
    table.rms_norm(x.const_data_ptr(), residual.const_data_ptr(), weight.const_data_ptr(), 0.5f, rows, width, 1e-5f,
                   sum.mutable_data_ptr(), y.mutable_data_ptr(), scale.mutable_data_ptr<float>());
    CHECK(relative_difference(sum, x.to(at::kDouble) + residual.to(at::kDouble)) < tolerance);
    const auto wide = [](const Tensor& tensor) { return tensor.to(at::kDouble); };
    const auto wanted = kernels::rms_norm(wide(sum), {}, wide(weight), 1e-5, 0.5);
    CHECK(relative_difference(y, wanted.y_RD) < tolerance);
    table.rms_norm_backward(d_y.const_data_ptr(), sum.const_data_ptr(), weight.const_data_ptr(), 0.5f,
                            scale.const_data_ptr<float>(), residual.const_data_ptr(), rows, width,
                            d_x.mutable_data_ptr(), d_weight.mutable_data_ptr<float>());
    const auto [d_x_wanted, d_weight_wanted] =
        kernels::rms_norm_backward(wide(d_y), wide(sum), wide(weight), wanted.inverse_rms_R, wide(residual), 0.5);
    CHECK(relative_difference(d_x, d_x_wanted) < tolerance);
    CHECK(relative_difference(d_weight, d_weight_wanted) < 2e-6);

    const Tensor gate_up = (at::randn({rows, 2 * width}) * 4).to(dtype), d_product = at::randn({rows, width}).to(dtype);
    const Tensor product = at::empty_like(x), again = at::empty_like(x), d_gate_up = at::empty_like(gate_up);
    table.swiglu(gate_up.const_data_ptr(), rows, width, product.mutable_data_ptr());
    table.swiglu_backward(gate_up.const_data_ptr(), d_product.const_data_ptr(), rows, width, again.mutable_data_ptr(),
                          d_gate_up.mutable_data_ptr());
    const auto [product_wanted, d_gate_up_wanted] = kernels::swiglu_backward(wide(gate_up), wide(d_product));
    CHECK(relative_difference(product, product_wanted) < tolerance);
    CHECK(at::equal(product, again));
    CHECK(relative_difference(d_gate_up, d_gate_up_wanted) < tolerance);

    // Whole heads, and the first dimensions of each, in pairs of halves and of neighbours.
    for (const auto& [rotated_dim, interleaved] : {std::pair{14, false}, {6, false}, {14, true}, {6, true}}) {
      const Tensor angles = at::rand({rows, rotated_dim / 2}), table_Td = at::cat({angles.cos(), angles.sin()}, 1);
      const Tensor rotated = x.clone(), rotated_wanted = wide(x);
      table.rope(rotated.mutable_data_ptr(), rows, width, 3, 14, rotated_dim, interleaved,
                 table_Td.const_data_ptr<float>(), 1);
      kernels::rope_(rotated_wanted, 3, 14, wide(table_Td), interleaved, false);
      CHECK(relative_difference(rotated, rotated_wanted) < tolerance);
      table.rope(rotated.mutable_data_ptr(), rows, width, 3, 14, rotated_dim, interleaved,
                 table_Td.const_data_ptr<float>(), -1);
      CHECK(relative_difference(rotated, x) < 2 * tolerance);
    }
  });
}

TEST_CASE("fused AdamW follows the formula in float64 and scales the gradient on reading") {
  at::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensor parameter = at::randn({1003}), m = at::zeros({1003}), v = at::zeros({1003});
    Tensor p64 = parameter.to(at::kDouble), m64 = m.to(at::kDouble), v64 = v.to(at::kDouble);
    ops::AdamWArguments arguments;
    arguments.lr = 1e-2, arguments.weight_decay = 0.1, arguments.gradient_scale = 0.5;
    for (arguments.step = 1; arguments.step <= 5; ++arguments.step) {
      const Tensor gradient = at::randn({1003}).to(dtype), g = gradient.to(at::kDouble) * 0.5;
      ops::fused_adamw_(parameter, gradient, m, v, arguments);
      const auto step = static_cast<double>(arguments.step);
      m64 = 0.9 * m64 + 0.1 * g;
      v64 = 0.95 * v64 + 0.05 * g * g;
      p64 = p64 * (1 - 1e-3) -
            1e-2 * (m64 / (1 - std::pow(0.9, step))) / ((v64 / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
    }
    CHECK(relative_difference(parameter, p64) < 1e-6);
    CHECK(relative_difference(v, v64) < 1e-6);
  }
}

TEST_CASE("ops::rms_norm refuses what it cannot do and agrees with float64") {
  const Tensor x = at::randn({9, 33}), weight = at::randn({33});
  const Tensor wanted = kernels::rms_norm(x.to(at::kDouble), {}, weight.to(at::kDouble), 1e-6).y_RD;
  CHECK(relative_difference(ops::rms_norm(x, weight, 1e-6), wanted) < 1e-6);
}

}  // namespace troupe
