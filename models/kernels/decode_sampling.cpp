#include "models/kernels/decode_sampling.h"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

constexpr int64_t kBlock = 256;     // ids whose exponentials are summed together before the running sum in double
constexpr float kNothing = 1e-30f;  // the kernels' exponential of minus infinity is not quite 0, but below this

/// Sums of exp(logit * factor - shift) by blocks of ids; returns the whole sum.
double sum_blocks(const DecodeKernels& kernels, const float* logits, int64_t vocab_size, float factor, float shift,
                  std::vector<float>& sums) {
  sums.resize((vocab_size + kBlock - 1) / kBlock);
  double total = 0;
  for (size_t b = 0; b < sums.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * kBlock;
    sums[b] = kernels.exp_sum(logits + begin, std::min(kBlock, vocab_size - begin), factor, shift);
    total += sums[b];
  }
  return total;
}

/// First id whose running sum exceeds `target`; where rounding leaves none in the block that holds it, its last one.
int32_t walk_all(const DecodeKernels& kernels, const float* logits, int64_t vocab_size, float factor, float shift,
                 double target, SamplingScratch& scratch) {
  double running = 0;
  size_t block = 0;
  while (block + 1 < scratch.block_sums.size() && running + scratch.block_sums[block] <= target) {
    running += scratch.block_sums[block++];
  }
  const int64_t begin = static_cast<int64_t>(block) * kBlock, size = std::min(kBlock, vocab_size - begin);
  scratch.exponentials.resize(kBlock);
  kernels.exp_into(logits + begin, size, factor, shift, scratch.exponentials.data());
  int64_t last = 0;
  for (int64_t i = 0; i < size; ++i) {
    running += scratch.exponentials[i];
    if (running > target) return static_cast<int32_t>(begin + i);
    if (scratch.exponentials[i] > kNothing) last = i;
  }
  return static_cast<int32_t>(begin + last);
}

void gather(const float* logits, int64_t vocab_size, float threshold,
            std::vector<std::pair<float, int32_t>>& candidates) {
  candidates.clear();
  for (int64_t i = 0; i < vocab_size; ++i) {
    if (logits[i] >= threshold) candidates.emplace_back(logits[i], static_cast<int32_t>(i));
  }
}

/// Leaves in `candidates` what top-k and top-p keep (ties with the last one kept included). The vocabulary is not
/// sorted: ids within a growing distance of the best one are, until they suffice.
void filter(const float* logits, int64_t vocab_size, const SamplingRule& rule, float factor, float largest,
            double total, std::vector<std::pair<float, int32_t>>& candidates) {
  const bool by_count = rule.top_k > 0 && rule.top_k < vocab_size, by_mass = rule.top_p < 1;
  const auto exponential = [&](float logit) { return std::exp(static_cast<double>(logit - largest) * factor); };
  for (float distance = 8;; distance *= 4) {
    const bool everything = distance > 1e4f;
    gather(logits, vocab_size, everything ? -INFINITY : largest - distance / factor, candidates);
    if (by_count && static_cast<int64_t>(candidates.size()) < rule.top_k && !everything) continue;
    std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    size_t kept = candidates.size();
    const auto extend_over_ties = [&] {
      while (kept < candidates.size() && candidates[kept].first == candidates[kept - 1].first) ++kept;
    };
    if (by_count) {
      kept = std::min<size_t>(kept, static_cast<size_t>(rule.top_k));
      extend_over_ties();
      candidates.resize(kept);
    }
    if (by_mass) {
      double mass = total;
      if (by_count) {
        mass = 0;
        for (const auto& candidate : candidates) mass += exponential(candidate.first);
      }
      double running = 0;
      for (kept = 0; kept < candidates.size() && running < rule.top_p * mass; ++kept) {
        running += exponential(candidates[kept].first);
      }
      if (running < rule.top_p * mass && !by_count && !everything) continue;
      kept = std::max<size_t>(kept, 1);
      extend_over_ties();
      candidates.resize(kept);
    }
    return;
  }
}

int32_t walk_candidates(const DecodeKernels& kernels, float factor, float shift, float min_p, double uniform,
                        SamplingScratch& scratch) {
  auto& candidates = scratch.candidates;
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  auto& weights = scratch.exponentials;
  weights.resize(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) weights[i] = candidates[i].first;
  kernels.exp_into(weights.data(), static_cast<int64_t>(weights.size()), factor, shift, weights.data());
  // The best id's own exponential may miss 1 by a rounding.
  const float least = min_p * *std::max_element(weights.begin(), weights.end());
  double mass = 0;
  for (float& weight : weights) {
    if (weight < least) weight = 0;
    mass += weight;
  }
  double running = 0;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    running += weights[i];
    if (running > uniform * mass) return candidates[i].second;
    if (weights[i] > kNothing) last = i;
  }
  return candidates[last].second;
}

}  // namespace

SampledToken sample_token(const DecodeKernels& kernels, const float* logits, int64_t vocab_size,
                          const SamplingRule& rule, double uniform, SamplingScratch& scratch) {
  const bool greedy = rule.temperature <= 0;
  const float factor = greedy ? 1.0f : 1.0f / rule.temperature;
  const float largest = kernels.maximum(logits, vocab_size), shift = largest * factor;
  const double total = sum_blocks(kernels, logits, vocab_size, factor, shift, scratch.block_sums);
  if (!std::isfinite(largest) || !std::isfinite(total)) return {};
  uniform = std::max(uniform, static_cast<double>(kNothing));  // exactly 0 must not fall on what cannot come
  int32_t id = -1;
  if (greedy) {
    id = static_cast<int32_t>(std::find(logits, logits + vocab_size, largest) - logits);
  } else if (rule.top_p >= 1 && rule.min_p <= 0 && (rule.top_k <= 0 || rule.top_k >= vocab_size)) {
    id = walk_all(kernels, logits, vocab_size, factor, shift, uniform * total, scratch);
  } else {
    if (rule.top_p >= 1 && (rule.top_k <= 0 || rule.top_k >= vocab_size)) {
      // One more unit of distance than min-p allows, so that rounding at its edge is judged by the exponential alone.
      gather(logits, vocab_size, largest - (1 - std::log(rule.min_p)) / factor, scratch.candidates);
    } else {
      filter(logits, vocab_size, rule, factor, largest, total, scratch.candidates);
    }
    id = walk_candidates(kernels, factor, shift, rule.min_p, uniform, scratch);
  }
  return {id, static_cast<float>(static_cast<double>(logits[id] * factor - shift) - std::log(total))};
}

}  // namespace troupe
