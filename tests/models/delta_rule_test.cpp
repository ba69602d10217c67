// The gated delta rule over several chunks against its plain recurrence, token by token, in float64: outputs and
// gradients, of roots and of children that go on from a root.
#include "models/blocks/delta_net.h"
#include "tests/doctest.h"
#include "tests/models/tiny_model.h"

using namespace troupe;

namespace {

constexpr int64_t kHidden = 7;
constexpr double kNormEps = 1e-6;

DeltaConfig delta_config() {
  DeltaConfig config;
  config.num_key_heads = 2;
  config.num_value_heads = 4;
  config.key_dim = 6;
  config.value_dim = 5;
  config.kernel_size = 4;
  return config;
}

/// in_projections (qkv, z, b, a), convolution, dt_bias, A_log, norm: leaves from a fixed seed.
std::vector<Tensor> make_leaves(const DeltaConfig& config) {
  at::manual_seed(11);
  const auto leaf = [](std::vector<int64_t> shape, double scale, double middle) {
    return (at::randn(shape, at::kDouble) * scale + middle).requires_grad_();
  };
  const int64_t heads = config.num_value_heads;
  return {leaf({config.convolved_size(), kHidden}, 0.5, 0),
          leaf({config.values_size(), kHidden}, 0.5, 0),
          leaf({heads, kHidden}, 0.5, 0),
          leaf({heads, kHidden}, 0.5, 0),
          leaf({config.convolved_size(), 1, config.kernel_size}, 0.4, 0),
          leaf({heads}, 0.3, -4),  // slow decays, so that early tokens still count after 150
          leaf({heads}, 0.3, 0),
          leaf({config.value_dim}, 0.2, 1)};
}

/// One document by the recurrence of the paper.
Tensor recurrence(const Tensor& x_TD, const std::vector<Tensor>& w, const DeltaConfig& config) {
  const int64_t length = x_TD.size(0), group = config.num_value_heads / config.num_key_heads;
  const auto project = [&](size_t i) { return at::matmul(x_TD, w[i].t()); };
  const Tensor before =
      at::cat({at::zeros({config.kernel_size - 1, config.convolved_size()}, at::kDouble), project(0)});
  const Tensor z = project(1), b = project(2), a = project(3);
  std::vector<Tensor> rows;
  Tensor state = at::zeros({config.num_value_heads, config.key_dim, config.value_dim}, at::kDouble);
  for (int64_t t = 0; t < length; ++t) {
    const Tensor window = before.narrow(0, t, config.kernel_size);
    const Tensor mixed = at::silu((window * w[4].squeeze(1).t()).sum(0));
    const auto parts = mixed.split_with_sizes({config.keys_size(), config.keys_size(), config.values_size()}, 0);
    const auto unit_heads = [&](const Tensor& part) {
      const Tensor heads = part.view({config.num_key_heads, config.key_dim});
      return (heads / (heads.square().sum(1, true) + 1e-6).sqrt()).repeat_interleave(group, 0);
    };
    const Tensor query = unit_heads(parts[0]) / std::sqrt(static_cast<double>(config.key_dim));
    const Tensor key = unit_heads(parts[1]);
    const Tensor value = parts[2].view({config.num_value_heads, config.value_dim});
    const Tensor decay = (-w[6].exp() * at::log1p((a[t] + w[5]).exp())).exp();
    const Tensor beta = at::sigmoid(b[t]);
    state = state * decay.view({-1, 1, 1});
    const Tensor held = (state * key.unsqueeze(2)).sum(1);
    state = state + key.unsqueeze(2) * ((value - held) * beta.unsqueeze(1)).unsqueeze(1);
    const Tensor out = (state * query.unsqueeze(2)).sum(1);
    const Tensor normed = out / (out.square().mean(1, true) + kNormEps).sqrt() * w[7];
    rows.push_back((normed * at::silu(z[t]).view(normed.sizes())).flatten());
  }
  return at::stack(rows);
}

}  // namespace

TEST_CASE("the delta rule beyond one chunk is its recurrence, forward and backward, for roots and children") {
  const auto config = delta_config();
  // Two roots, one of them with two children that stand elsewhere in the row; all longer than a chunk of 64.
  const PackedLayout layout{{{0, 150, -1}, {150, 70, 0}, {220, 130, -1}, {350, 97, 0}}, 447};
  auto leaves = make_leaves(config);
  Tensor x = at::randn({447, kHidden}, at::kDouble).requires_grad_();
  leaves.push_back(x);
  const Tensor factors = at::randn({447, config.values_size()}, at::kDouble);
  const auto gradients_of = [&](const Tensor& out) {
    for (auto& leaf : leaves) leaf.mutable_grad() = Tensor();
    (out * factors).sum().backward();
    std::vector<Tensor> gradients;
    for (const auto& leaf : leaves) gradients.push_back(leaf.grad().clone());
    return gradients;
  };
  const blocks::DeltaWeights weights{
      {leaves[0], leaves[1], leaves[2], leaves[3]}, leaves[4], leaves[5], leaves[6], leaves[7]};
  const Tensor got = blocks::delta_net(x, weights, config, kNormEps, layout);
  const auto got_gradients = gradients_of(got);

  const auto part = [&](int64_t begin, int64_t count) { return x.narrow(0, begin, count); };
  const auto child = [&](int64_t begin, int64_t count) {
    return recurrence(at::cat({part(0, 150), part(begin, count)}), leaves, config).narrow(0, 150, count);
  };
  const Tensor wanted = at::cat({recurrence(part(0, 150), leaves, config), child(150, 70),
                                 recurrence(part(220, 130), leaves, config), child(350, 97)});
  const auto wanted_gradients = gradients_of(wanted);
  CHECK(testing::relative_difference(got, wanted) < 1e-10);
  for (size_t i = 0; i < leaves.size(); ++i) {
    CAPTURE(i);
    CHECK(wanted_gradients[i].abs().max().item<double>() > 1e-6);
    CHECK(testing::relative_difference(got_gradients[i], wanted_gradients[i]) < 1e-9);
  }
}
