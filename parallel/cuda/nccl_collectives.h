// Collectives over NCCL: raw communicators in non-blocking mode, so that every wait is ours and has a limit.
//
// A call enqueues its operation on the device's current stream and waits on the host for its end. While it waits it
// looks at four things: the stream's event (done), NCCL's own error state (a peer's connection broke), the group's
// store (a peer aborted, with a reason), and the clock. Each of the last three aborts the communicator, which ends its
// kernels, and throws an Error that names operation, label, rank and cause; every later call throws the same. Overlap
// of communication and compute is left to a later design of the interface: today's contract is that a returned call has
// its result.
#pragma once

#include "parallel/nccl.h"

namespace troupe {

std::unique_ptr<Collectives> create_nccl_collectives(const NcclOptions& options);

}  // namespace troupe
