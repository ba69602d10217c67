// How ops.h finds the implementation for a tensor's device: CPU tensors go to ops_cpu.h, CUDA tensors through a table
// that the CUDA target fills at start-up (register_cuda_ops), so that a build without CUDA holds no CUDA symbol.
//
// What every implementation may rely on (checked in ops_dispatch*.cpp, each failure an Error that names op and
// argument):
//  - all tensors are on one device, defined, of the shapes and dtypes of ops.h; floating dtypes float32 or bfloat16;
//  - contiguous, but for q, k, v rows: their last two dimensions are dense, stride(0) is free (slices of a fused
//    projection); an empty first dimension is possible;
//  - no gradient is asked for: an op called while autograd records on one of its inputs is refused, as none has a
//  backward.
// Values on the device (slots, block tables, lengths, ids) are not read back and so not checked.
#pragma once

#include "models/kernels/ops.h"

namespace troupe::ops {

/// One device's implementations, with the signatures of ops.h.
struct DeviceOps {
  decltype(&rms_norm) rms_norm_function = nullptr;
  decltype(&write_kv_with_rope_) write_kv_with_rope_function = nullptr;
  decltype(&paged_decode_attention) paged_decode_attention_function = nullptr;
  decltype(&fused_adamw_) fused_adamw_function = nullptr;
  decltype(&sample) sample_function = nullptr;
};

/// The table of CUDA devices; empty until register_cuda_ops (models/kernels/cuda/register.h) has run. Written once,
/// before any thread computes.
DeviceOps& cuda_ops();

/// True where `tensor` lives on a CUDA device; fails where the device is neither CPU nor CUDA, or CUDA has no table.
bool dispatches_to_cuda(const Tensor& tensor, const char* op);

/// Argument checks, shared by the definitions of all ops.
void check_tensor(const Tensor& tensor, const Tensor& same_device_as, const char* op, const char* name);
void check_float(const Tensor& tensor, const char* op, const char* name);
void check_dtype(const Tensor& tensor, at::ScalarType dtype, const char* op, const char* name);
void check_shape(const Tensor& tensor, at::IntArrayRef shape, const char* op, const char* name);
void check_contiguous(const Tensor& tensor, const char* op, const char* name);
void check_dense_rows(const Tensor& tensor, const char* op, const char* name);

}  // namespace troupe::ops
