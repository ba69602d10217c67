// A mixture of experts: rows are routed, gathered by expert, multiplied panel by panel, and added up in the order of
// each row's own choice, whatever else is in the batch.
#include <algorithm>

#include "rollout/change_row.h"

namespace troupe {
namespace {

template <class T>
class ExpertsPart {
 public:
  ExpertsPart(ForwardState<T>& state, int64_t layer_index)
      : s_(state),
        routed_(state.routed),
        weights_(state.model->layers[static_cast<size_t>(layer_index)].experts),
        moe_(state.config.moe),
        choices_(moe_.num_experts_per_token),
        num_pairs_(state.num_rows() * choices_) {}

  void run(Walk& walk) {
    const bool has_gate = weights_.shared_gate.num_panels > 0;
    s_.multiply(walk, weights_.router, s_.input.row(0), s_.input.stride, routed_.logits);
    s_.share(walk, s_.num_rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) choose(r);
    });
    s_.share(walk, 1, 1, [&](int64_t, int64_t) { sort_pairs(); });
    s_.share(walk, num_pairs_, 4, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) gather(slot);
    });
    const GateRule rule = {s_.config.activation, static_cast<float>(moe_.clamp_limit),
                           static_cast<float>(moe_.swish_factor)};
    float* scratch = s_.per_thread[static_cast<size_t>(walk.thread)].product.data();
    share_panels(walk, (moe_.intermediate_size + kPanelColumns - 1) / kPanelColumns, [&](int64_t e, int64_t pair) {
      const int64_t first = routed_.begins[static_cast<size_t>(e)];
      gate_panel(s_.kernels, rule, expert(e), pair, routed_.input.row(first), routed_.input.stride, count_of(e),
                 scratch, routed_.activation.row(first), routed_.activation.stride);
    });
    share_panels(walk, (s_.config.hidden_size + kPanelColumns - 1) / kPanelColumns,
                 [&](int64_t e, int64_t panel) { multiply_down(e, panel); });
    s_.share(walk, s_.num_rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) add_up(r);
    });
    if (weights_.shared.size == 0) return;
    if (has_gate) s_.multiply(walk, weights_.shared_gate, s_.input.row(0), s_.input.stride, routed_.logits);
    const GateRule plain = {s_.config.activation};
    s_.share(walk, weights_.shared.gate_up.num_panels / 2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        gate_panel(s_.kernels, plain, weights_.shared, pair, s_.input.row(0), s_.input.stride, s_.num_rows(), scratch,
                   s_.activation.row(0), s_.activation.stride);
      }
    });
    if (has_gate) {
      s_.share(walk, s_.num_rows(), 4, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) weigh_shared(r);
      });
    }
    s_.add_product(walk, weights_.shared.down, s_.activation.row(0), s_.activation.stride, {}, {});
  }

 private:
  const PackedMlp<T>& expert(int64_t e) const { return weights_.experts[static_cast<size_t>(e)]; }
  int64_t count_of(int64_t e) const {
    return routed_.begins[static_cast<size_t>(e + 1)] - routed_.begins[static_cast<size_t>(e)];
  }

  void choose(int64_t r) {
    float* logits = routed_.logits.row(r);
    if (!weights_.router_bias.empty()) s_.kernels.add(weights_.router_bias.data(), moe_.num_experts, logits);
    choose_experts(moe_, weights_.choice_bias, logits, routed_.experts.data() + r * choices_,
                   routed_.weights.data() + r * choices_);
  }

  /// Places of all pairs of row and choice, sorted by expert.
  void sort_pairs() {
    auto& begins = routed_.begins;
    std::fill(begins.begin(), begins.end(), 0);
    for (int64_t i = 0; i < num_pairs_; ++i) ++begins[static_cast<size_t>(routed_.experts[static_cast<size_t>(i)] + 1)];
    for (size_t e = 1; e < begins.size(); ++e) begins[e] += begins[e - 1];
    next_.assign(begins.begin(), begins.end());
    for (int64_t i = 0; i < num_pairs_; ++i) {
      const int64_t slot = next_[static_cast<size_t>(routed_.experts[static_cast<size_t>(i)])]++;
      routed_.slots[static_cast<size_t>(i)] = static_cast<int32_t>(slot);
      routed_.rows[static_cast<size_t>(slot)] = static_cast<int32_t>(i);
    }
  }

  void gather(int64_t slot) {
    const int64_t pair = routed_.rows[static_cast<size_t>(slot)], hidden = s_.config.hidden_size;
    const T* from = s_.input.row(pair / choices_);
    T* to = routed_.input.row(slot);
    if (moe_.score != RouterScore::kSigmoidInput) {
      std::copy_n(from, hidden, to);
      return;
    }
    const float weight = routed_.weights[static_cast<size_t>(pair)];
    change_row(s_.typed(), from, hidden, to, [weight](int64_t, float value) { return value * weight; });
  }

  /// work(expert, panel) for every panel of every expert that has rows.
  template <class Work>
  void share_panels(Walk& walk, int64_t num_panels, const Work& work) {
    s_.share(walk, moe_.num_experts * num_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (count_of(i / num_panels) > 0) work(i / num_panels, i % num_panels);
      }
    });
  }

  void multiply_down(int64_t e, int64_t panel) {
    const auto& down = expert(e).down;
    const auto& bias = expert(e).down_bias;
    const int64_t first = routed_.begins[static_cast<size_t>(e)], column = panel * kPanelColumns;
    float* out = routed_.output.row(first) + column;
    s_.typed().gemm_panel(routed_.activation.row(first), routed_.activation.stride, count_of(e), down.panel(panel),
                          down.depth, out, routed_.output.stride);
    for (int64_t r = 0; !bias.empty() && r < count_of(e); ++r) {
      s_.kernels.add(bias.data() + column, kPanelColumns, out + r * routed_.output.stride);
    }
  }

  void add_up(int64_t r) {
    float* residual = s_.residual.row(r);
    for (int64_t k = 0; k < choices_; ++k) {
      const auto pair = static_cast<size_t>(r * choices_ + k);
      const float* from = routed_.output.row(routed_.slots[pair]);
      const float weight = moe_.score == RouterScore::kSigmoidInput ? 1.0f : routed_.weights[pair];
      for (int64_t i = 0; i < s_.config.hidden_size; ++i) residual[i] += weight * from[i];
    }
  }

  void weigh_shared(int64_t r) {
    const float weight = 1.0f / (1.0f + std::exp(-routed_.logits.row(r)[0]));
    T* row = s_.activation.row(r);
    change_row(s_.typed(), row, weights_.shared.size, row, [weight](int64_t, float value) { return value * weight; });
  }

  ForwardState<T>& s_;
  typename ForwardState<T>::Routed& routed_;
  const PackedExperts<T>& weights_;
  const MoeConfig& moe_;
  const int64_t choices_, num_pairs_;
  std::vector<int64_t> next_;
};

/// The `count` largest of values, the first of equal ones; what was taken becomes -inf.
void take_largest(std::vector<float>& values, int64_t count, int32_t* indices) {
  for (int64_t k = 0; k < count; ++k) {
    const auto best = std::max_element(values.begin(), values.end());
    indices[k] = static_cast<int32_t>(best - values.begin());
    *best = -std::numeric_limits<float>::infinity();
  }
}

/// Leaves only the experts of the best groups; a group is as good as its two best experts.
void keep_best_groups(const MoeConfig& config, std::vector<float>& choice) {
  if (config.num_groups == 1) return;
  const int64_t size = config.num_experts / config.num_groups;
  std::vector<float> scores;
  for (int64_t g = 0; g < config.num_groups; ++g) {
    std::vector<float> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::partial_sort(group.begin(), group.begin() + 2, group.end(), std::greater<>());
    scores.push_back(group[0] + group[1]);
  }
  std::vector<int32_t> kept(static_cast<size_t>(config.num_kept_groups));
  take_largest(scores, config.num_kept_groups, kept.data());
  for (int64_t e = 0; e < config.num_experts; ++e) {
    const bool is_kept = std::find(kept.begin(), kept.end(), static_cast<int32_t>(e / size)) != kept.end();
    if (!is_kept) choice[static_cast<size_t>(e)] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void choose_experts(const MoeConfig& config, const std::vector<float>& choice_bias, const float* logits,
                    int32_t* experts, float* weights) {
  const int64_t count = config.num_experts_per_token;
  std::vector<float> choice(logits, logits + config.num_experts);
  const bool is_sigmoid = config.score == RouterScore::kSigmoid || config.score == RouterScore::kSigmoidInput;
  const auto sigmoid = [](float x) { return 1.0f / (1.0f + std::exp(-x)); };
  if (config.score == RouterScore::kSigmoid) {
    for (auto& value : choice) value = sigmoid(value);
    for (size_t e = 0; e < choice_bias.size(); ++e) choice[e] += choice_bias[e];
    keep_best_groups(config, choice);
  }
  const float largest = *std::max_element(choice.begin(), choice.end());
  take_largest(choice, count, experts);
  float sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    weights[k] = is_sigmoid ? sigmoid(logits[experts[k]]) : std::exp(logits[experts[k]] - largest);
    sum += weights[k];
  }
  if (config.score == RouterScore::kSoftmax && !config.normalise) {
    sum = 0;
    for (int64_t e = 0; e < config.num_experts; ++e) sum += std::exp(logits[e] - largest);
  }
  const bool divides = !is_sigmoid || config.normalise;
  if (is_sigmoid) sum += 1e-20f;  // all of the chosen may round to 0
  for (int64_t k = 0; k < count; ++k) {
    weights[k] = (divides ? weights[k] / sum : weights[k]) * static_cast<float>(config.scale);
  }
}

template <class T>
void run_experts(ForwardState<T>& state, Walk& walk, int64_t layer_index) {
  ExpertsPart<T>(state, layer_index).run(walk);
}
template void run_experts(ForwardState<float>&, Walk&, int64_t);
template void run_experts(ForwardState<Bf16>&, Walk&, int64_t);

}  // namespace troupe
