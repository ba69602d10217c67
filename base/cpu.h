// What this processor can do, and how many cores the process may use. Kernels choose by this at run time.
#pragma once

#include <string>

namespace troupe {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, VL, DQ
  bool avx512_bf16 = false;  // VDPBF16PS
  bool amx_bf16 = false;
  std::string model_name;
};

/// Read once with CPUID (and XGETBV: the operating system must save the registers too). TROUPE_CPU=avx2|avx512|generic
/// lowers what is reported, so that every kernel can be tested on one machine.
const CpuFeatures& cpu_features();
/// True where bf16 matrix products are faster than fp32 ones.
bool has_fast_bf16();
/// Cores this process may run on (affinity and cgroup limit).
int num_usable_cores();
/// Highest resident memory of this process so far, bytes.
long long peak_memory_bytes();
/// Resident memory now, bytes.
long long resident_memory_bytes();

/// Keeps a loop's memory at what its rounds need. Rounds of changing sizes leave the heap in pieces, and the pages of
/// freed pieces stay with the process; without this a run of hundreds of steps grows by a quarter (B123).
class HeapTrimmer {
 public:
  /// To be called once a round, where the round's temporary memory is free. Where resident memory has grown by a 25th
  /// since the round after the last trim, free pages go back to the system, which costs about the time of clearing
  /// them again. True where it did.
  bool after_round();

 private:
  long long resident_bytes_ = 0;  // of the first round after a trim; 0: that round is to come
};

}  // namespace troupe
