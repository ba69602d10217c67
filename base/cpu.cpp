#include "base/cpu.h"

#include <cpuid.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace troupe {
namespace {

uint64_t read_xcr0() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool may_use_amx() {
  // Linux hands out the tile registers on request only (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18).
  return ::syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

CpuFeatures detect() {
  CpuFeatures features;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return features;
  const bool fma = (c & bit_FMA) != 0, f16c = (c & bit_F16C) != 0;
  const auto xcr0 = read_xcr0();
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6, tiles = (xcr0 & 0x60000) == 0x60000;
  unsigned d7 = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d7)) {
    features.avx2 = ymm && fma && f16c && (b & bit_AVX2) != 0;
    const unsigned wanted = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    features.avx512 = features.avx2 && zmm && (b & wanted) == wanted;
    features.amx_bf16 = features.avx512 && tiles && (d7 & (1u << 24)) != 0 && (d7 & (1u << 22)) != 0 && may_use_amx();
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) features.avx512_bf16 = features.avx512 && (a & (1u << 5)) != 0;
  }
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      features.model_name = line.substr(std::min(line.size(), line.find(':') + 2));
      break;
    }
  }
  if (const char* limit = std::getenv("TROUPE_CPU")) {
    const std::string name = limit;
    if (name == "generic") features.avx2 = features.avx512 = features.avx512_bf16 = features.amx_bf16 = false;
    if (name == "avx2") features.avx512 = features.avx512_bf16 = features.amx_bf16 = false;
    if (name == "avx512") features.avx512_bf16 = features.amx_bf16 = false;
    if (name == "avx512_bf16") features.amx_bf16 = false;
  }
  return features;
}

long long status_kib(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return std::atoll(line.c_str() + std::char_traits<char>::length(field) + 1);
  }
  return 0;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

bool has_fast_bf16() { return cpu_features().avx512_bf16 || cpu_features().amx_bf16; }

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                             : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  std::string quota;
  long period = 0;
  if (limit >> quota >> period && quota != "max" && period > 0) {
    cores = std::min<int>(cores, std::max<long>(1, (std::atol(quota.c_str()) + period - 1) / period));
  }
  return std::max(1, cores);
}

long long peak_memory_bytes() { return status_kib("VmHWM") * 1024; }
long long resident_memory_bytes() { return status_kib("VmRSS") * 1024; }

bool HeapTrimmer::after_round() {
  const auto resident = resident_memory_bytes();
  if (resident_bytes_ == 0) resident_bytes_ = resident;
  if (resident <= resident_bytes_ + resident_bytes_ / 25) return false;
  ::malloc_trim(0);
  resident_bytes_ = 0;
  return true;
}

}  // namespace troupe
