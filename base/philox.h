// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A number is a function of (seed, sample id, token index, stream), so it depends on no batch, worker or restart.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

/// What a stream of random numbers is for; part of the counter. The values are a promise (protocol).
enum class RandomStream : uint32_t { kSampling = 0, kDropout = 1, kDataOrder = 2, kInitialisation = 3 };

/// The ten rounds. Constexpr, so that CUDA kernels call the same functions (--expt-relaxed-constexpr).
constexpr std::array<uint32_t, 4> philox_4x32_10(std::array<uint32_t, 4> counter, uint32_t key_0, uint32_t key_1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product_1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ key_0, static_cast<uint32_t>(product_1),
               static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key_1, static_cast<uint32_t>(product_0)};
    key_0 += 0x9E3779B9u;
    key_1 += 0xBB67AE85u;
  }
  return counter;
}

/// Four random words for one counter value.
constexpr std::array<uint32_t, 4> random_words(uint64_t seed, uint64_t sample_id, uint32_t index, RandomStream stream) {
  return philox_4x32_10(
      {static_cast<uint32_t>(sample_id), static_cast<uint32_t>(sample_id >> 32), index, static_cast<uint32_t>(stream)},
      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// One uniform number in [0, 1) with 32 random bits, from the first word.
constexpr double random_uniform(uint64_t seed, uint64_t sample_id, uint32_t index, RandomStream stream) {
  return random_words(seed, sample_id, index, stream)[0] * 0x1.0p-32;
}

}  // namespace troupe
