// The one door to LibTorch: every file that computes with tensors includes this header, which is precompiled.
// Deliberately without torch/torch.h (torch::nn, data loaders): Troupe's networks are plain structs of tensors.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {
using at::Tensor;
}  // namespace troupe
