// The door to NCCL; what lies behind it is in parallel/cuda/.
#include "parallel/nccl.h"

#include "base/error.h"

namespace troupe {

NcclFactory& nccl_factory() {
  static NcclFactory factory = nullptr;
  return factory;
}

std::unique_ptr<Collectives> make_nccl_collectives(const NcclOptions& options) {
  require(nccl_factory() != nullptr,
          "collectives over NCCL are not in this build; build with the cuda preset (TROUPE_WITH_CUDA=ON)");
  require(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "NCCL group \"", options.group_name,
          "\": rank ", options.rank, " is not within a size of ", options.size);
  return nccl_factory()(options);
}

}  // namespace troupe
