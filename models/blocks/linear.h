// Linear maps as autograd functions: y = x W^T + b, several checkpoint tensors at once where they stand side by side.
//
// Shape legend: T tokens, I input size, O output size.
#pragma once

#include "models/torch.h"

namespace troupe::blocks {

/// x_TI W_OI^T (+ bias_O) -> [T, O]. `bias` may be an undefined tensor. Saves the weight variable, never a copy of it.
Tensor linear(const Tensor& x_TI, const Tensor& weight_OI, const Tensor& bias_O);

/// The same for weights under each other: [T, sum of O], one product. `biases`: none, or one a weight.
Tensor stacked_linear(const Tensor& x_TI, at::TensorList weights, at::TensorList biases = {});

/// [sum of O, I]: the weights under each other. A view without copying where they are neighbours in one storage (the
/// flat buffer of a sharded unit), else a copy. Not differentiable: for use inside autograd functions.
Tensor stack_rows(at::TensorList weights);
/// Same for biases; undefined where none is defined. Throws Error where only some are.
Tensor stack_biases(at::TensorList biases);

/// weight_OI^T g: the gradient of the weight, in the weight's dtype.
Tensor weight_gradient(const Tensor& gradient_TO, const Tensor& x_TI);
/// Cuts the gradient of stacked rows into views, one per weight.
std::vector<Tensor> split_rows(const Tensor& gradient, at::TensorList weights);
/// Both for stacked weights; undefined tensors where they are put off (see DeferredWeightGradients).
std::vector<Tensor> weight_gradients(const Tensor& gradient_TO, const Tensor& x_TI, at::TensorList weights);

/// While one lives, backward passes on this thread leave out the products that give weight gradients, so that input
/// gradients are there sooner; they are computed later, when there is time (Qi et al. 2023, "Zero bubble pipeline
/// parallelism"). A backward that runs on another thread (a device's) is not put off.
class DeferredWeightGradients {
 public:
  struct Product {
    std::vector<Tensor> weights;  // the leaves
    Tensor gradient_TO, x_TI;
  };
  DeferredWeightGradients();
  ~DeferredWeightGradients();
  DeferredWeightGradients(const DeferredWeightGradients&) = delete;
  DeferredWeightGradients& operator=(const DeferredWeightGradients&) = delete;
  std::vector<Product> take() { return std::exchange(products_, {}); }

 private:
  friend std::vector<Tensor> weight_gradients(const Tensor&, const Tensor&, at::TensorList);
  std::vector<Product> products_;
  DeferredWeightGradients* outer_;
};

}  // namespace troupe::blocks
