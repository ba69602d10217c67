// Rotary position embedding: the table.
#include "models/blocks/rope.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace troupe::blocks {
namespace {

/// Frequencies of each token's document; documents of one length share them.
class Frequencies {
 public:
  Frequencies(const RopeConfig& rope, int64_t head_dim, const std::vector<int32_t>& positions,
              const std::vector<int32_t>& document_lengths)
      : usual_(rope_inverse_frequencies(rope, head_dim)) {
    const int64_t constant = rope.constant_length();
    const auto longest = std::max_element(positions.begin(), positions.end());
    if (longest == positions.end() || (document_lengths.empty() && *longest < constant)) return;
    require(document_lengths.size() == positions.size(), "rope \"", rope.kind, "\": position ", *longest,
            " needs the lengths of the documents");
    for (const int32_t length : document_lengths) {
      if (length > constant && !of_length_.contains(length)) {
        of_length_[length] = rope_inverse_frequencies(rope, head_dim, length);
      }
    }
    if (!of_length_.empty()) lengths_ = &document_lengths;
  }

  const std::vector<double>& at(int64_t token) const {
    if (lengths_ == nullptr) return usual_;
    const auto found = of_length_.find((*lengths_)[static_cast<size_t>(token)]);
    return found == of_length_.end() ? usual_ : found->second;
  }

 private:
  std::vector<double> usual_;
  std::map<int32_t, std::vector<double>> of_length_;
  const std::vector<int32_t>* lengths_ = nullptr;
};

}  // namespace

Tensor rope_table(const RopeConfig& rope, int64_t head_dim, const std::vector<int32_t>& positions, at::ScalarType dtype,
                  at::Device device, const std::vector<int32_t>& document_lengths) {
  const Frequencies frequencies(rope, head_dim, positions, document_lengths);
  const int64_t half = head_dim / 2;
  const auto num_tokens = static_cast<int64_t>(positions.size());
  const bool is_double = dtype == at::kDouble;
  Tensor table = at::empty({num_tokens, head_dim}, is_double ? at::kDouble : at::kFloat);
  const auto fill = [&]<class Scalar>(Scalar* out) {
    const auto scale = static_cast<Scalar>(rope.attention_factor);
    at::parallel_for(0, num_tokens, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const auto& of_token = frequencies.at(t);
        for (int64_t i = 0; i < half; ++i) {
          const Scalar angle = static_cast<Scalar>(positions[t]) * static_cast<Scalar>(of_token[i]);
          out[t * head_dim + i] = static_cast<Scalar>(std::cos(static_cast<double>(angle))) * scale;
          out[t * head_dim + half + i] = static_cast<Scalar>(std::sin(static_cast<double>(angle))) * scale;
        }
      }
    });
  };
  if (is_double) {
    fill(table.mutable_data_ptr<double>());
  } else {
    fill(table.mutable_data_ptr<float>());
  }
  return table.to(device);
}

}  // namespace troupe::blocks
