// The gated delta rule, one token after the other (models/blocks/delta_net.h has it in chunks). A sequence keeps a slot
// with each head's matrix and the last inputs of the convolution; its rows of a step stand together, in order.
#include <algorithm>

#include "rollout/forward_state.h"

namespace troupe {
namespace {

constexpr float kUnitEps = 1e-6f;

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

template <class T>
class DeltaPart {
 public:
  DeltaPart(ForwardState<T>& state, int64_t layer_index)
      : s_(state),
        index_(layer_index),
        layer_(state.model->layers[static_cast<size_t>(layer_index)]),
        weights_(layer_.delta),
        sizes_(state.config.delta),
        channels_(sizes_.convolved_size()),
        group_(sizes_.num_value_heads / sizes_.num_key_heads),
        convolved_begin_(round_up(channels_ + sizes_.values_size() + 2 * sizes_.num_value_heads, kPanelColumns)) {}

  void run(Walk& walk) {
    s_.multiply(walk, weights_.projection, s_.input.row(0), s_.input.stride, s_.wide);
    const auto num_sequences = static_cast<int64_t>(s_.sequence_begins.size()) - 1;
    s_.share(walk, num_sequences, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t r = first_row(i); r < first_row(i + 1); ++r) convolve_row(i, r);
      }
    });
    s_.share(walk, num_sequences * sizes_.num_value_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run_head(i / sizes_.num_value_heads, i % sizes_.num_value_heads);
    });
    s_.share(walk, num_sequences, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) keep_inputs(i);
    });
    s_.add_product(walk, layer_.output, s_.input.row(0), s_.input.stride, layer_.output_bias, layer_.mixer_output_norm);
  }

 private:
  int64_t first_row(int64_t sequence) const { return s_.sequence_begins[static_cast<size_t>(sequence)]; }
  const Row& row_at(int64_t r) const { return (*s_.rows)[static_cast<size_t>(r)]; }
  float* convolved(int64_t r) { return s_.wide.row(r) + convolved_begin_; }
  /// [value heads][key][value], then the convolution's last inputs [kernel - 1][channel], the oldest first.
  float* state_of(int64_t sequence) { return s_.recurrent_state(index_, row_at(first_row(sequence)).state); }
  int64_t matrix_elements() const { return sizes_.key_dim * sizes_.value_dim; }
  float* inputs_of(int64_t sequence) { return state_of(sequence) + sizes_.num_value_heads * matrix_elements(); }

  /// The input `distance` tokens before row r of the sequence; null before its start.
  const float* input_before(int64_t sequence, int64_t r, int64_t distance) {
    if (row_at(r).position < distance) return nullptr;
    const int64_t first = first_row(sequence);
    if (r - distance >= first) return s_.wide.row(r - distance);
    return inputs_of(sequence) + (sizes_.kernel_size - 1 + (r - distance - first)) * channels_;
  }

  /// Convolution and SiLU, then unit queries and keys, and each head's decay and learning rate.
  void convolve_row(int64_t sequence, int64_t r) {
    float* out = convolved(r);
    std::fill_n(out, channels_, 0.0f);
    for (int64_t distance = sizes_.kernel_size - 1; distance >= 0; --distance) {
      const float* input = input_before(sequence, r, distance);
      if (input == nullptr) continue;
      const float* factors = weights_.convolution.data() + (sizes_.kernel_size - 1 - distance) * channels_;
      for (int64_t c = 0; c < channels_; ++c) out[c] += input[c] * factors[c];
    }
    for (int64_t c = 0; c < channels_; ++c) out[c] *= sigmoid(out[c]);
    const float query_scale = 1.0f / std::sqrt(static_cast<float>(sizes_.key_dim));
    for (int64_t h = 0; h < 2 * sizes_.num_key_heads; ++h) {
      float* head = out + h * sizes_.key_dim;
      float squares = 0;
      for (int64_t i = 0; i < sizes_.key_dim; ++i) squares += head[i] * head[i];
      const float factor = (h < sizes_.num_key_heads ? query_scale : 1.0f) / std::sqrt(squares + kUnitEps);
      for (int64_t i = 0; i < sizes_.key_dim; ++i) head[i] *= factor;
    }
    const float* b = s_.wide.row(r) + channels_ + sizes_.values_size();
    const float* a = b + sizes_.num_value_heads;
    float* rates = out + channels_;
    for (int64_t h = 0; h < sizes_.num_value_heads; ++h) {
      const float x = a[h] + weights_.dt_bias[static_cast<size_t>(h)];
      const float softplus = x > 20 ? x : std::log1p(std::exp(x));
      rates[h] = sigmoid(b[h]);
      rates[sizes_.num_value_heads + h] = std::exp(-weights_.decay_rate[static_cast<size_t>(h)] * softplus);
    }
  }

  void run_head(int64_t sequence, int64_t h) {
    float* matrix = state_of(sequence) + h * matrix_elements();
    const int64_t first = first_row(sequence), dv = sizes_.value_dim;
    if (row_at(first).position == 0) std::fill_n(matrix, matrix_elements(), 0.0f);
    std::vector<float> correction(static_cast<size_t>(dv)), output(static_cast<size_t>(dv));
    for (int64_t r = first; r < first_row(sequence + 1); ++r) {
      const float* query = convolved(r) + h / group_ * sizes_.key_dim;
      const float* key = query + sizes_.keys_size();
      const float* value = convolved(r) + 2 * sizes_.keys_size() + h * dv;
      const float* rates = convolved(r) + channels_;
      const float beta = rates[h], decay = rates[sizes_.num_value_heads + h];
      std::fill(correction.begin(), correction.end(), 0.0f);
      for (int64_t i = 0; i < sizes_.key_dim; ++i) {
        float* row = matrix + i * dv;
        for (int64_t j = 0; j < dv; ++j) {
          row[j] *= decay;
          correction[static_cast<size_t>(j)] += row[j] * key[i];
        }
      }
      for (int64_t j = 0; j < dv; ++j) {
        correction[static_cast<size_t>(j)] = beta * (value[j] - correction[static_cast<size_t>(j)]);
      }
      std::fill(output.begin(), output.end(), 0.0f);
      for (int64_t i = 0; i < sizes_.key_dim; ++i) {
        float* row = matrix + i * dv;
        for (int64_t j = 0; j < dv; ++j) {
          row[j] += key[i] * correction[static_cast<size_t>(j)];
          output[static_cast<size_t>(j)] += row[j] * query[i];
        }
      }
      const float* z = s_.wide.row(r) + channels_ + h * dv;
      s_.kernels.f32.rms_norm(output.data(), weights_.norm.data(), dv, s_.epsilon(), output.data());
      for (int64_t j = 0; j < dv; ++j) output[static_cast<size_t>(j)] *= z[j] * sigmoid(z[j]);
      s_.typed().convert(output.data(), dv, s_.input.row(r) + h * dv);
    }
  }

  /// Puts the last inputs where the next step looks for them.
  void keep_inputs(int64_t sequence) {
    const int64_t kept = sizes_.kernel_size - 1, first = first_row(sequence), end = first_row(sequence + 1);
    float* inputs = inputs_of(sequence);
    for (int64_t i = 0; i < kept; ++i) {  // from the oldest on: what is overwritten has been moved
      const int64_t r = end - kept + i;
      const float* from = r >= first ? s_.wide.row(r) : inputs + (kept + r - first) * channels_;
      if (from != inputs + i * channels_) std::copy_n(from, channels_, inputs + i * channels_);
    }
  }

  ForwardState<T>& s_;
  const int64_t index_;
  const PackedLayer<T>& layer_;
  const PackedDelta<T>& weights_;
  const DeltaConfig& sizes_;
  const int64_t channels_, group_, convolved_begin_;
};

}  // namespace

template <class T>
void run_delta_net(ForwardState<T>& state, Walk& walk, int64_t layer_index) {
  DeltaPart<T>(state, layer_index).run(walk);
}
template void run_delta_net(ForwardState<float>&, Walk&, int64_t);
template void run_delta_net(ForwardState<Bf16>&, Walk&, int64_t);

}  // namespace troupe
