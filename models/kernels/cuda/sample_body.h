// Kernel body of sample: log-softmax, the three filters as thresholds, and the draw by inverse cumulative sum.
//
// Thresholds are found by bisection over the order-preserving integer form of a float: at most 32 passes over a row
// that lies in the cache, no sort, no atomics, so a result repeats bit for bit.
#pragma once

#include "base/philox.h"
#include "models/kernels/cuda/block.h"

namespace troupe::ops::cuda {

struct SampleRow {
  float temperature, top_p, min_p;
  int top_k;
  uint64_t seed, sample_id;
  uint32_t token_index;
};

constexpr int kSampleThreads = 1024;
constexpr int kSampleGroup = 32;  // partial sums that one thread adds up
constexpr int64_t kMaxSampleVocab = int64_t{kSampleThreads} * kSampleThreads;

struct SampleShared {
  double sums[kSampleThreads];
  double group_sums[kSampleThreads / kSampleGroup];
  float weights[kSampleThreads];  // of the chunk that holds the drawn id
  double remaining;               // of the target, within that chunk
  int chunk;
};

/// Unsigned integers in the order of the floats (-NaN below all, NaN above).
TROUPE_DEVICE inline uint32_t ordered_key(float value) {
  const uint32_t bits = float_to_bits(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// The largest key in [low, high] at which `reaches(key)` holds; it holds at `low` and is monotone.
template <class F>
TROUPE_DEVICE uint32_t last_key(uint32_t low, uint32_t high, F reaches) {
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2 + ((high - low) & 1u);
    if (reaches(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// One row by one block of at most kSampleThreads threads (a multiple of kSampleGroup). Writes one id and its log-prob;
/// a row with NaN or plus infinity, or without a finite logit, gives the id -1 and a NaN log-prob: a kernel cannot
/// throw.
template <class T, class Block>
TROUPE_DEVICE void sample_row(Block& block, const T* logits, int vocab_size, const SampleRow& row, SampleShared& shared,
                              int64_t* id, float* log_prob) {
  const bool greedy = row.temperature == 0;
  const float temperature = greedy ? 1.0f : row.temperature;
  const auto scaled = [&](int i) { return to_float(logits[i]) / temperature; };
  const auto over_vocabulary = [&](auto zero, auto term) {  // this thread's part of a sum
    return [&block, vocab_size, zero, term](int thread) {
      auto sum = zero;
      for (int i = thread; i < vocab_size; i += block.size()) sum += term(i);
      return sum;
    };
  };
  const float best = block_max<float>(block, [&](int thread) {
    float maximum = -INFINITY;
    for (int i = thread; i < vocab_size; i += block.size()) maximum = fmaxf(maximum, scaled(i));
    return maximum;
  });
  const float log_sum =
      logf(block_sum<float>(block, over_vocabulary(0.0f, [&](int i) { return expf(scaled(i) - best); })));
  if (!(fabsf(best) < INFINITY && fabsf(log_sum) < INFINITY)) {
    block.each([&](int thread) {
      if (thread > 0) return;
      *id = -1;
      *log_prob = NAN;
    });
    return;
  }
  if (greedy) {
    const int winner = block_min<int>(block, [&](int thread) {
      for (int i = thread; i < vocab_size; i += block.size()) {
        if (scaled(i) == best) return i;
      }
      return vocab_size;
    });
    block.each([&](int thread) {
      if (thread > 0) return;
      *id = winner;
      *log_prob = -log_sum;
    });
    return;
  }

  uint32_t threshold = 0;
  const uint32_t best_key = ordered_key(best);
  if (row.top_k > 0 && row.top_k < vocab_size) {
    threshold = last_key(0, best_key, [&](uint32_t key) {
      return row.top_k <=
             block_sum<int>(block, over_vocabulary(0, [&](int i) { return ordered_key(scaled(i)) >= key ? 1 : 0; }));
    });
  }
  if (row.top_p < 1.0f) {
    const auto mass = [&](uint32_t key) {
      return block_sum<double>(block, over_vocabulary(0.0, [&](int i) {
                                 const float value = scaled(i);
                                 return ordered_key(value) >= key ? static_cast<double>(expf(value - best)) : 0.0;
                               }));
    };
    const double target = static_cast<double>(row.top_p) * mass(threshold);
    threshold = last_key(threshold, best_key, [&](uint32_t key) { return mass(key) >= target; });
  }
  const auto weight = [&](int i) {
    const float value = scaled(i), probability = expf(value - best);  // relative to the best
    return ordered_key(value) >= threshold && probability >= row.min_p ? probability : 0.0f;
  };

  // The draw: a chunk of neighbouring ids a thread, summed in id order; then groups of chunks, chunks, ids.
  const int chunk_size = (vocab_size + block.size() - 1) / block.size();
  const int num_groups = block.size() / kSampleGroup;
  block.each([&](int thread) {
    double sum = 0;
    const int begin = thread * chunk_size;
    for (int i = begin; i < begin + chunk_size && i < vocab_size; ++i) sum += weight(i);
    shared.sums[thread] = sum;
  });
  block.each([&](int thread) {
    if (thread >= num_groups) return;
    double sum = 0;
    for (int i = 0; i < kSampleGroup; ++i) sum += shared.sums[thread * kSampleGroup + i];
    shared.group_sums[thread] = sum;
  });
  block.each([&](int thread) {
    if (thread > 0) return;
    double total = 0;
    for (int group = 0; group < num_groups; ++group) total += shared.group_sums[group];
    const double target = total * random_uniform(row.seed, row.sample_id, row.token_index, RandomStream::kSampling);
    // target < total and `total` was added up in this very order, so a group crosses unless there is no mass at all.
    int group = 0;
    double before = 0;
    while (group < num_groups - 1 && !(before + shared.group_sums[group] > target)) {
      before += shared.group_sums[group++];
    }
    // Inside the group, rounding may leave no crossing: then the last chunk with any mass has it.
    double remaining = target - before;
    shared.chunk = 0;
    shared.remaining = 0;
    for (int chunk = group * kSampleGroup; chunk < (group + 1) * kSampleGroup; ++chunk) {
      if (!(shared.sums[chunk] > 0)) continue;
      shared.chunk = chunk;
      shared.remaining = remaining;
      if (shared.sums[chunk] > remaining) break;
      remaining -= shared.sums[chunk];
    }
  });
  const int begin = shared.chunk * chunk_size;
  const int count = begin + chunk_size < vocab_size ? chunk_size : vocab_size - begin;
  block.each([&](int thread) {
    if (thread < count) shared.weights[thread] = weight(begin + thread);
  });
  block.each([&](int thread) {
    if (thread > 0) return;
    double running = 0;
    int drawn = begin;
    for (int i = 0; i < count; ++i) {
      if (!(shared.weights[i] > 0)) continue;
      drawn = begin + i;
      running += shared.weights[i];
      if (running > shared.remaining) break;
    }
    *id = drawn;
    *log_prob = scaled(drawn) - best - log_sum;
  });
}

}  // namespace troupe::ops::cuda
