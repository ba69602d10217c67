// The table test of models/kernels/ops.h: every op over a table of shapes and element types against float64, for every
// implementation that is there: the CPU's, the CUDA kernels' bodies run serially (in both thread orders, which must
// agree bit for bit where no reduction is involved), and CUDA itself where a device is.
#include "models/kernels/ops.h"

#include "tests/doctest.h"
#include "tests/models/implementations.h"
#include "tests/models/tiny_model.h"

namespace troupe {
namespace {

using testing::Implementation;
using testing::implementations;
using testing::relative_difference;
using testing::ThreadOrder;

/// Runs `check(implementation, dtype, tolerance)` for all; the tolerance is relative to the largest element.
template <class Check>
void for_each(const Check& check) {
  for (const Implementation& implementation : implementations()) {
    for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 3e-6}, {at::kBFloat16, 6e-3}}) {
      CAPTURE(implementation.name);
      CAPTURE(at::toString(dtype));
      check(implementation, dtype, tolerance);
    }
  }
}

Tensor wide(const Tensor& tensor) { return tensor.to(at::kCPU, at::kDouble); }

struct AttentionCase {
  int64_t num_heads, num_kv_heads, head_size, block_size;
  std::vector<int32_t> lengths;
};

/// Shapes of SmolLM2 (9/3/64), Llama 3 (8 a group), one group of 9 (more than a thread block serves), odd sizes, 256.
const std::vector<AttentionCase> kAttentionCases = {{9, 3, 64, 16, {1, 16, 17, 0, 300}},
                                                    {8, 1, 128, 8, {5, 64, 33}},
                                                    {9, 1, 80, 4, {0, 7}},
                                                    {2, 2, 12, 3, {1, 2, 3, 4, 100}},
                                                    {4, 2, 256, 16, {40, 31}}};

/// A paged cache whose blocks are handed out in a shuffled order; blocks that belong to no sequence hold NaN.
struct PagedInputs {
  Tensor q, k_cache, v_cache, block_tables, lengths;

  PagedInputs(const AttentionCase& c, at::ScalarType dtype) {
    at::manual_seed(c.num_heads * 1000 + c.head_size);
    const auto num_sequences = static_cast<int64_t>(c.lengths.size());
    int64_t columns = 1, used = 0;
    for (const int32_t length : c.lengths) {
      columns = std::max<int64_t>(columns, (length + c.block_size - 1) / c.block_size);
      used += (length + c.block_size - 1) / c.block_size;
    }
    const Tensor order = at::randperm(used + 3);
    k_cache = at::randn({used + 3, c.num_kv_heads, c.block_size, c.head_size}).to(dtype);
    v_cache = at::randn_like(k_cache);
    block_tables = at::full({num_sequences, columns}, -1, at::kInt);
    int64_t next = 0;
    for (int64_t s = 0; s < num_sequences; ++s) {
      for (int64_t m = 0; m * c.block_size < c.lengths[s]; ++m) block_tables[s][m] = order[next++].item<int64_t>();
    }
    for (; next < used + 3; ++next) k_cache[order[next].item<int64_t>()].fill_(NAN);
    lengths = at::tensor(c.lengths, at::kInt);
    // Rows of q are slices of a wider tensor, as after a fused projection.
    q = at::randn({num_sequences, c.num_heads + 2, c.head_size}).to(dtype).narrow(1, 1, c.num_heads);
  }

  Tensor expected(double scale) const {
    const int64_t block_size = k_cache.size(2), group = q.size(1) / k_cache.size(1);
    Tensor out = at::zeros(q.sizes(), at::kDouble);
    for (int64_t s = 0; s < q.size(0); ++s) {
      const int64_t length = lengths[s].item<int64_t>();
      if (length == 0) continue;
      std::vector<Tensor> keys, values;
      for (int64_t t = 0; t < length; ++t) {
        const int64_t block = block_tables[s][t / block_size].item<int64_t>();
        keys.push_back(k_cache[block].select(1, t % block_size));
        values.push_back(v_cache[block].select(1, t % block_size));
      }
      const Tensor k = wide(at::stack(keys, 1)).repeat_interleave(group, 0);  // [H, length, d]
      const Tensor v = wide(at::stack(values, 1)).repeat_interleave(group, 0);
      const Tensor scores = at::matmul(k, wide(q[s]).unsqueeze(2)).squeeze(2) * scale;
      out[s] = at::matmul(at::softmax(scores, 1).unsqueeze(1), v).squeeze(1);
    }
    return out;
  }
};

}  // namespace

TEST_CASE("ops table: rms_norm") {
  for_each([](const Implementation& implementation, at::ScalarType dtype, double tolerance) {
    for (const auto& [rows, size] : {std::pair{1, 1}, {3, 33}, {9, 576}, {2, 4096}, {0, 64}}) {
      CAPTURE(size);
      at::manual_seed(size);
      const Tensor x = (at::randn({rows, size}) * 3).to(dtype), weight = (at::randn({size}) + 1).to(dtype);
      const Tensor x64 = wide(x);
      const Tensor wanted = x64 / (x64.pow(2).mean(1, true) + 1e-5).sqrt() * wide(weight);
      const Tensor y = implementation.functions.rms_norm_function(x.to(implementation.device),
                                                                  weight.to(implementation.device), 1e-5);
      CHECK(y.sizes() == x.sizes());
      CHECK((y.scalar_type() == dtype));
      if (rows > 0) CHECK(relative_difference(y.cpu(), wanted) < tolerance);
    }
  });
}

TEST_CASE("ops table: write_kv_with_rope_") {
  for_each([](const Implementation& implementation, at::ScalarType dtype, double tolerance) {
    for (const AttentionCase& c : kAttentionCases) {
      CAPTURE(c.head_size);
      at::manual_seed(c.head_size);
      const int64_t rows = 5, heads = c.num_heads, kv_heads = c.num_kv_heads, d = c.head_size;
      const Tensor fused = at::randn({rows, heads + 2 * kv_heads, d}).to(dtype);
      const Tensor positions = at::tensor({0, 7, 4000, 1, 30000}, at::kInt);
      const Tensor slots = at::tensor({5, -1, 0, static_cast<int>(4 * c.block_size - 1), 2}, at::kLong);
      const Tensor frequencies = at::pow(at::scalar_tensor(10000.0), -at::arange(0, d, 2) / static_cast<double>(d));
      const Tensor angles = (positions.unsqueeze(1) * frequencies).to(at::kDouble).unsqueeze(1);  // fp32 product
      const auto rotated = [&](const Tensor& x) {
        const Tensor low = wide(x).narrow(2, 0, d / 2), high = wide(x).narrow(2, d / 2, d / 2);
        return at::cat({low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()}, 2);
      };
      const Tensor q_wanted = rotated(fused.narrow(1, 0, heads)), k_wanted = rotated(fused.narrow(1, heads, kv_heads));
      const Tensor v = wide(fused.narrow(1, heads + kv_heads, kv_heads));
      Tensor k_cache_wanted = at::full({4, kv_heads, c.block_size, d}, -7.0, at::kDouble);
      Tensor v_cache_wanted = k_cache_wanted.clone();
      for (int64_t s = 0; s < rows; ++s) {
        const int64_t slot = slots[s].item<int64_t>();
        if (slot < 0) continue;
        k_cache_wanted[slot / c.block_size].select(1, slot % c.block_size).copy_(k_wanted[s]);
        v_cache_wanted[slot / c.block_size].select(1, slot % c.block_size).copy_(v[s]);
      }
      const Tensor on_device = fused.to(implementation.device, dtype, false, true);
      Tensor q = on_device.narrow(1, 0, heads), k = on_device.narrow(1, heads, kv_heads);
      Tensor k_cache = at::full({4, kv_heads, c.block_size, d}, -7.0, on_device.options()), v_cache = k_cache.clone();
      implementation.functions.write_kv_with_rope_function(
          q, k, on_device.narrow(1, heads + kv_heads, kv_heads), positions.to(implementation.device),
          slots.to(implementation.device), frequencies.to(implementation.device), k_cache, v_cache);
      CHECK(relative_difference(q.cpu(), q_wanted) < tolerance);
      CHECK(relative_difference(k.cpu(), k_wanted) < tolerance);
      CHECK(relative_difference(k_cache.cpu(), k_cache_wanted) < tolerance);
      CHECK(at::equal(wide(v_cache), v_cache_wanted));
    }
  });
}

TEST_CASE("ops table: paged_decode_attention") {
  for_each([](const Implementation& implementation, at::ScalarType dtype, double tolerance) {
    for (const AttentionCase& c : kAttentionCases) {
      CAPTURE(c.head_size);
      const PagedInputs in(c, dtype);
      const auto device = implementation.device;
      const Tensor q = device.is_cpu() ? in.q : in.q.to(device);
      const Tensor out = implementation.functions.paged_decode_attention_function(
          q, in.k_cache.to(device), in.v_cache.to(device), in.block_tables.to(device), in.lengths.to(device), 0.2);
      CHECK(relative_difference(out.cpu(), in.expected(0.2)) < tolerance);
    }
  });
}

TEST_CASE("ops table: splits of long contexts merge into what one split gives, in either thread order") {
  const AttentionCase c{6, 2, 64, 16, {1500, 0, 256, 257, 3}};
  const PagedInputs in(c, at::kFloat);
  const Tensor wanted = in.expected(0.125);
  for (const int num_blocks_wanted : {1, 30, 100000}) {
    const auto run = [&](ThreadOrder order) {
      return testing::serial_attention(order, num_blocks_wanted, in.q, in.k_cache, in.v_cache, in.block_tables,
                                       in.lengths, 0.125);
    };
    const Tensor up = run(ThreadOrder::kUp);
    CHECK(relative_difference(up, wanted) < 3e-6);
    CHECK(at::equal(up, run(ThreadOrder::kDown)));
  }
}

TEST_CASE("ops table: fused_adamw_") {
  for_each([](const Implementation& implementation, at::ScalarType dtype, double) {
    at::manual_seed(4);
    const auto device = implementation.device;
    Tensor parameter = at::randn({1003}).to(device), m = at::zeros({1003}, parameter.options()), v = at::zeros_like(m);
    Tensor p64 = wide(parameter), m64 = wide(m), v64 = wide(v);
    ops::AdamWArguments arguments;
    arguments.lr = 1e-2, arguments.weight_decay = 0.1, arguments.gradient_scale = 0.5;
    for (arguments.step = 1; arguments.step <= 4; ++arguments.step) {
      const Tensor gradient = at::randn({1003}).to(dtype), g = wide(gradient) * 0.5;
      implementation.functions.fused_adamw_function(parameter, gradient.to(device), m, v, arguments);
      const auto step = static_cast<double>(arguments.step);
      m64 = 0.9 * m64 + 0.1 * g;
      v64 = 0.95 * v64 + 0.05 * g * g;
      p64 = p64 * (1 - 1e-3) -
            1e-2 * (m64 / (1 - std::pow(0.9, step))) / ((v64 / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
    }
    CHECK(relative_difference(parameter.cpu(), p64) < 1e-6);
    CHECK(relative_difference(m.cpu(), m64) < 1e-6);
    CHECK(relative_difference(v.cpu(), v64) < 1e-6);
  });
}

}  // namespace troupe
