// Recompute by one autograd function: forward without a graph, backward runs the body again with one.
#include "models/recompute.h"

#include "base/error.h"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BodyHolder : torch::CustomClassHolder {
  explicit BodyHolder(UnitRunner::Body body) : body(std::move(body)) {}
  UnitRunner::Body body;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const UnitRunner::Body& body) {
    context->save_for_backward({x});
    context->saved_data["body"] = at::IValue::make_capsule(c10::make_intrusive<BodyHolder>(body));
    return body(x);  // autograd is off inside of a function's forward
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<BodyHolder>(context->saved_data["body"].toCapsule());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_grad(true);
    const Tensor y = holder->body(x);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), Tensor()};
  }
};

}  // namespace

RecomputeMode parse_recompute_mode(const std::string& mode) {
  if (mode == "none") return RecomputeMode::kNone;
  if (mode == "selective") return RecomputeMode::kSelective;
  if (mode == "full") return RecomputeMode::kFull;
  throw UsageError(concat("activation_checkpoint.mode = \"", mode, "\": known are \"none\", \"selective\", \"full\""));
}

bool recomputes(RecomputeMode mode, int64_t unit, int64_t num_layers) {
  if (unit < 1 || unit > num_layers) return false;
  return mode == RecomputeMode::kFull || (mode == RecomputeMode::kSelective && unit % 2 == 0);
}

Tensor RecomputeRunner::run(int64_t unit, const Body& body, const Tensor& x) {
  // Without a gradient to come, or on an input that needs none (which autograd would not call back for), nothing is
  // kept.
  if (!recomputes(mode_, unit, num_layers_) || !at::GradMode::is_enabled() || !x.requires_grad())
    return inner_.run(unit, body, x);
  return inner_.run(
      unit, [body](const Tensor& input) { return RecomputeFunction::apply(input, body); }, x);
}

}  // namespace troupe
