// The door to collectives over NCCL, as the CPU rooms see it: what one rank needs, and a factory that the CUDA half of
// the build provides (parallel/cuda/register.h). A build without CUDA holds only the door and says so when it is
// opened.
#pragma once

#include "parallel/collectives.h"

namespace troupe {

/// One rank over NCCL, driving one CUDA device; no two ranks of a group may share a device. Rendezvous as with Gloo.
struct NcclOptions {
  int rank = 0, size = 1;
  int device = 0;  // index of the CUDA device
  std::string store_host = "127.0.0.1";
  int store_port = 0;  // of a TCP store served by rank 0; 0: a store of this process, shared by `group_name`
  std::string group_name = "default";
  std::chrono::milliseconds timeout{60000};  // of joining and of each operation
};

using NcclFactory = std::unique_ptr<Collectives> (*)(const NcclOptions&);
/// Null until register_cuda() has run.
NcclFactory& nccl_factory();

/// Joins the group and returns once every rank has. Tensors may lie on the rank's device or, for small control data, on
/// the CPU (they then travel through the device). Calls return when their result is complete. Sums are as repeatable as
/// NCCL's (same devices, same topology), not in rank order. Throws Error: no CUDA build, no such device, a rank that
/// did not come (named).
std::unique_ptr<Collectives> make_nccl_collectives(const NcclOptions& options);

}  // namespace troupe
