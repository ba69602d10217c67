// What the ranks of one NCCL group tell each other outside NCCL, through a c10d store: the communicator's id, who has
// come, who is stuck, and why the group ended.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/nccl.h"

namespace troupe {

class NcclGroupStore {
 public:
  /// Connects to (rank 0: serves) the store. Throws Error when rank 0 cannot be reached within the time limit.
  explicit NcclGroupStore(const NcclOptions& options);

  /// Rank 0 gives `id` to all; the others return what rank 0 gave. Every rank marks itself as here.
  std::vector<uint8_t> exchange_id(const std::vector<uint8_t>& id);
  /// "rank 1, rank 3": the ranks that have not marked themselves as here.
  std::string missing_ranks();

  /// The reason with which some rank ended the group; empty while it lives. Cheap; a store that is gone is a reason
  /// too.
  std::string abort_reason();
  void set_abort_reason(const std::string& reason);
  /// Marks this rank as stuck in `operation` and returns, after a short grace, the ranks that are not stuck in it.
  std::string ranks_not_waiting(const std::string& operation);

 private:
  std::string ranks_without(const std::string& prefix, const std::string& value);

  NcclOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace troupe
