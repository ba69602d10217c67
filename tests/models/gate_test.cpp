// The clamped gate of gpt-oss beyond its limit: its values by the formula, its gradients by autograd of plain ops.
#include "models/blocks/gate.h"
#include "tests/doctest.h"
#include "tests/models/tiny_model.h"

using namespace troupe;

TEST_CASE("a clamped gate holds its limit, and what is beyond it gets no gradient") {
  at::manual_seed(3);
  constexpr double kLimit = 3, kFactor = 1.702;
  for (const bool take_turns : {false, true}) {
    CAPTURE(take_turns);
    const blocks::GateForm form{.take_turns = take_turns, .clamp_limit = kLimit, .swish_factor = kFactor};
    const Tensor gate_up = (at::randn({40, 12}, at::kDouble) * 4).requires_grad_();
    const auto half = [&](int64_t which) {
      return take_turns ? gate_up.slice(1, which, 12, 2) : gate_up.narrow(1, 6 * which, 6);
    };
    const Tensor gate = half(0), up = half(1);
    // Both sides of each bound occur.
    CHECK(gate.gt(kLimit).any().item<bool>());
    CHECK(gate.lt(-kLimit).any().item<bool>());
    CHECK(up.gt(kLimit).any().item<bool>());
    CHECK(up.lt(-kLimit).any().item<bool>());
    const Tensor g = at::where(gate.gt(kLimit), at::full_like(gate, kLimit), gate);  // nothing bounds it below
    const Tensor u = at::where(up.abs().gt(kLimit), up.detach().sign() * kLimit, up);
    const Tensor wanted = (u + 1) * g / (1 + (-kFactor * g).exp());
    const Tensor d = at::randn({40, 6}, at::kDouble);
    (wanted * d).sum().backward();
    const auto [product, gradient] = blocks::gate_backward(gate_up.detach(), d, form);
    CHECK(testing::relative_difference(blocks::gate_product(gate_up.detach(), form), wanted) < 1e-14);
    CHECK(testing::relative_difference(product, wanted) < 1e-14);
    CHECK(testing::relative_difference(gradient, gate_up.grad()) < 1e-13);
    const Tensor d_gate = take_turns ? gradient.slice(1, 0, 12, 2) : gradient.narrow(1, 0, 6);
    CHECK(d_gate.masked_select(gate.gt(kLimit)).abs().max().item<double>() == 0);
    CHECK(d_gate.masked_select(gate.lt(-kLimit)).abs().max().item<double>() > 0);
  }
}
