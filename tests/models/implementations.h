// Who implements ops.h on this machine, for the table tests.
#pragma once

#include <iostream>

#include "tests/models/serial_ops.h"

namespace troupe::testing {

struct Implementation {
  std::string name;
  ops::DeviceOps functions;
  at::Device device = at::kCPU;
};

/// Why there is no CUDA device to test on; null where there is one.
inline const char* why_no_cuda() {
  if (!at::hasCUDA()) return "this build has no CUDA";
  return at::getNumGPUs() == 0 ? "no CUDA device is there" : nullptr;
}

/// The CPU's; the bodies of the CUDA kernels run serially in two thread orders; CUDA where a device is, else a printed
/// word on why not.
inline std::vector<Implementation> implementations() {
  const ops::DeviceOps by_device{&ops::rms_norm, &ops::write_kv_with_rope_, &ops::paged_decode_attention,
                                 &ops::fused_adamw_, &ops::sample};
  std::vector<Implementation> result = {{"CPU", by_device},
                                        {"CUDA bodies, threads upwards", serial_cuda_ops(ThreadOrder::kUp)},
                                        {"CUDA bodies, threads downwards", serial_cuda_ops(ThreadOrder::kDown)}};
  if (const char* reason = why_no_cuda(); reason == nullptr) {
    result.push_back({"CUDA", by_device, at::Device(at::kCUDA, 0)});
  } else {
    std::cout << "ops table: CUDA skipped: " << reason << std::endl;
  }
  return result;
}

}  // namespace troupe::testing
