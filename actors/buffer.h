// The buffer actor: a thin shell around GroupBuffer. Mailbox bound: the slots that admission gives out.
#pragma once

#include "actors/batch_summary.h"
#include "actors/interfaces.h"
#include "actors/trace.h"

namespace troupe {

struct BufferSetup {
  GroupBufferOptions options;
  TokenText text;
  std::string saved;                  // groups.bin of the checkpoint that is resumed, or ""
  std::vector<uint64_t> live_groups;  // of that checkpoint
};

buffer_actor spawn_buffer(caf::actor_system& system, BufferSetup setup);

}  // namespace troupe
