// The forms of a head chunk.
#include "training/head_chunk.h"

#include "models/kernels/training_ops.h"

namespace troupe {
namespace {

using kernels::kPanelWidth;
using kernels::ScoreValues;

/// bf16 weights, fp32 logits in panels of 64 tokens.
class PanelChunk : public HeadChunk {
 public:
  PanelChunk(const Tensor& weight, double temperature, int64_t num_chunk_rows)
      : weight_(weight),
        inverse_temperature_(static_cast<float>(1 / temperature)),
        kernels_(kernels::training_kernels().head) {
    const int64_t num_panels = (num_chunk_rows + kPanelWidth - 1) / kPanelWidth;
    panels_ = at::empty({num_panels, weight.size(0), kPanelWidth}, weight.options().dtype(at::kFloat));
    packed_ = at::empty({num_panels, weight.size(1) / 2, kPanelWidth}, weight.options().dtype(at::kInt));
    d_logits_ = at::empty({weight.size(0) * num_chunk_rows}, weight.options());
    values_.resize(num_chunk_rows);
  }

  void forward(const Tensor& hidden, const Tensor& targets, const Tensor& log_prob, const Tensor& entropy) override {
    num_rows_ = hidden.size(0);
    targets_ = targets.contiguous();
    const int64_t size = weight_.size(1), vocab_size = weight_.size(0), num_panels = this->num_panels();
    const auto* x = static_cast<const char*>(hidden.const_data_ptr());
    auto* packed = static_cast<char*>(packed_.mutable_data_ptr());
    float* panels = panels_.mutable_data_ptr<float>();
    at::parallel_for(0, num_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        kernels_.pack(x + p * kPanelWidth * size * 2, count(p), size, packed + p * size / 2 * kPanelWidth * 4);
      }
    });
    at::parallel_for(0, vocab_size, 96, [&](int64_t begin, int64_t end) {
      kernels_.multiply(weight_.const_data_ptr(), begin, end, size, packed, num_panels, vocab_size * kPanelWidth,
                        panels);
    });
    at::parallel_for(0, num_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        kernels_.values(panels + p * vocab_size * kPanelWidth, vocab_size, inverse_temperature_, target(p), count(p),
                        values_.data() + p * kPanelWidth);
      }
    });
    for (int64_t row = 0; row < num_rows_; ++row) {
      log_prob.mutable_data_ptr<float>()[row] = values_[row].log_prob;
      entropy.mutable_data_ptr<float>()[row] = values_[row].entropy;
    }
  }

  Tensor backward(const Tensor& d_log_prob, const Tensor& d_entropy) override {
    const Tensor upstream = d_log_prob.to(at::kFloat).contiguous();
    const Tensor of_entropy = d_entropy.defined() ? d_entropy.to(at::kFloat).contiguous() : at::zeros_like(upstream);
    const int64_t vocab_size = weight_.size(0), num_panels = this->num_panels();
    const Tensor out = d_logits_.narrow(0, 0, vocab_size * num_rows_).view({vocab_size, num_rows_});
    auto* to = static_cast<char*>(out.mutable_data_ptr());
    at::parallel_for(0, vocab_size, 512, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < num_panels; ++p) {
        const int64_t row = p * kPanelWidth;
        kernels_.gradient(panels_.const_data_ptr<float>() + p * vocab_size * kPanelWidth, begin, end,
                          inverse_temperature_, target(p), count(p), values_.data() + row,
                          upstream.const_data_ptr<float>() + row, of_entropy.const_data_ptr<float>() + row,
                          to + row * 2, num_rows_);
      }
    });
    return out;
  }

 private:
  int64_t num_panels() const { return (num_rows_ + kPanelWidth - 1) / kPanelWidth; }
  int64_t count(int64_t panel) const { return std::min(kPanelWidth, num_rows_ - panel * kPanelWidth); }
  const int64_t* target(int64_t panel) const { return targets_.const_data_ptr<int64_t>() + panel * kPanelWidth; }

  Tensor weight_, panels_, packed_, d_logits_, targets_;
  float inverse_temperature_;
  const kernels::HeadKernels& kernels_;
  std::vector<ScoreValues> values_;
  int64_t num_rows_ = 0;
};

/// Caps logits in place; `slope` gets what a gradient of the capped ones is multiplied by.
void cap_(const Tensor& logits, double softcap, Tensor& slope) {
  if (softcap == 0) return;
  logits.div_(softcap).tanh_();
  slope = 1 - logits.square();
  logits.mul_(softcap);
}

/// fp32 logits [N, V] by one product; bf16 weights are widened once.
class RowChunk : public HeadChunk {
 public:
  RowChunk(const Tensor& weight, const LogitRule& rule)
      : wide_weight_(weight.to(at::kFloat)),
        type_(weight.scalar_type()),
        inverse_temperature_(static_cast<float>(1 / rule.temperature)),
        softcap_(rule.softcap) {}

  void forward(const Tensor& hidden, const Tensor& targets, const Tensor& log_prob, const Tensor& entropy) override {
    logits_ = at::mm(hidden.to(at::kFloat), wide_weight_.t());
    cap_(logits_, softcap_, slope_);
    targets_ = targets.contiguous();
    values_.resize(hidden.size(0));
    const auto kernel = kernels::training_kernels().float32.score_values;
    at::parallel_for(0, hidden.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        values_[row] = kernel(logits(row), logits_.size(1), inverse_temperature_, target(row));
        log_prob.mutable_data_ptr<float>()[row] = values_[row].log_prob;
        entropy.mutable_data_ptr<float>()[row] = values_[row].entropy;
      }
    });
  }

  Tensor backward(const Tensor& d_log_prob, const Tensor& d_entropy) override {
    const auto& table = kernels::training_kernels();
    const bool narrow = type_ == at::kBFloat16 && softcap_ == 0;
    const auto kernel = narrow ? table.score_gradient_to_bfloat16 : table.float32.score_gradient;
    const Tensor upstream = d_log_prob.contiguous(),
                 of_entropy = d_entropy.defined() ? d_entropy.contiguous() : d_entropy;
    const Tensor out = narrow ? at::empty(logits_.sizes(), logits_.options().dtype(type_)) : logits_;
    at::parallel_for(0, logits_.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float entropy_gradient = of_entropy.defined() ? of_entropy.const_data_ptr<float>()[row] : 0.0f;
        auto* to =
            static_cast<char*>(out.mutable_data_ptr()) + row * out.size(1) * static_cast<int64_t>(out.element_size());
        kernel(logits(row), logits_.size(1), inverse_temperature_, target(row), values_[row],
               upstream.const_data_ptr<float>()[row], entropy_gradient, to);
      }
    });
    return softcap_ == 0 ? out.t() : out.mul_(slope_).to(type_).t();
  }

 private:
  const float* logits(int64_t row) const { return logits_.const_data_ptr<float>() + row * logits_.size(1); }
  int64_t target(int64_t row) const { return targets_.const_data_ptr<int64_t>()[row]; }

  Tensor wide_weight_, logits_, targets_, slope_;
  at::ScalarType type_;
  float inverse_temperature_;
  double softcap_;
  std::vector<ScoreValues> values_;
};

/// Plain tensor operations: float64 and other devices.
class PlainChunk : public HeadChunk {
 public:
  PlainChunk(const Tensor& weight, const LogitRule& rule)
      : wide_weight_(weight.to(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)),
        type_(weight.scalar_type()),
        inverse_temperature_(1 / rule.temperature),
        softcap_(rule.softcap) {}

  void forward(const Tensor& hidden, const Tensor& targets, const Tensor& log_prob, const Tensor& entropy) override {
    const Tensor logits = at::mm(hidden.to(wide_weight_.scalar_type()), wide_weight_.t());
    cap_(logits, softcap_, slope_);
    const Tensor scores = logits * inverse_temperature_;
    targets_ = targets.unsqueeze(1);
    log_p_ = at::log_softmax(scores, 1);
    entropy_ = -(log_p_.exp() * log_p_).sum(1);
    log_prob.copy_(log_p_.gather(1, targets_).squeeze(1));
    entropy.copy_(entropy_);
  }

  Tensor backward(const Tensor& d_log_prob, const Tensor& d_entropy) override {
    const Tensor p = log_p_.exp();
    Tensor gradient = p * (-d_log_prob).unsqueeze(1);
    if (d_entropy.defined()) gradient -= p * (log_p_ + entropy_.unsqueeze(1)) * d_entropy.unsqueeze(1);
    gradient.scatter_add_(1, targets_, d_log_prob.to(gradient.scalar_type()).unsqueeze(1));
    if (softcap_ > 0) gradient.mul_(slope_);
    return gradient.mul_(inverse_temperature_).to(type_).t();
  }

 private:
  Tensor wide_weight_, targets_, log_p_, entropy_, slope_;
  at::ScalarType type_;
  double inverse_temperature_, softcap_;
};

/// A part of the vocabulary, by plain tensor operations: each rank's largest score, sum of exponentials, their mean and
/// the target's score are enough to know the whole softmax.
class SplitChunk : public HeadChunk {
 public:
  SplitChunk(const Tensor& weight, const LogitRule& rule, const VocabularySplit& split)
      : wide_weight_(weight.to(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)),
        type_(weight.scalar_type()),
        inverse_temperature_(1 / rule.temperature),
        softcap_(rule.softcap),
        split_(split) {}

  void forward(const Tensor& hidden, const Tensor& targets, const Tensor& log_prob, const Tensor& entropy) override {
    constexpr double kNothing = -1e30;  // below every score; finite, so that 0 * (it - largest) is 0
    scores_ = at::mm(hidden.to(wide_weight_.scalar_type()), wide_weight_.t());
    cap_(scores_, softcap_, slope_);
    scores_.mul_(inverse_temperature_);
    const int64_t num_rows = scores_.size(0), num_own = scores_.size(1);
    const Tensor local = targets - split_.begin;
    is_own_ = local.ge(0).logical_and(local.lt(num_own)).unsqueeze(1);
    local_targets_ = local.clamp(0, std::max<int64_t>(num_own - 1, 0)).unsqueeze(1);
    Tensor own = at::zeros({4, num_rows}, scores_.options());
    own[0].fill_(kNothing);
    if (num_own > 0) {
      own[0].copy_(scores_.amax(1));
      const Tensor below = scores_ - own[0].unsqueeze(1), exponentials = below.exp();
      own[1].copy_(exponentials.sum(1));
      own[2].copy_((exponentials * below).sum(1));
      own[3].copy_(scores_.gather(1, local_targets_).masked_fill(is_own_.logical_not(), 0).squeeze(1));
    }
    Tensor all = at::empty({split_.ranks->size(), 4, num_rows}, own.options());
    split_.ranks->all_gather(all, own, "softmax over the tensor ranks");
    const auto of_ranks = [&](int64_t number) { return all.select(1, number); };
    const Tensor largest = of_ranks(0).amax(0), below = of_ranks(0) - largest, share = below.exp();
    const Tensor sum = (of_ranks(1) * share).sum(0);
    const Tensor mean_below = ((of_ranks(2) + of_ranks(1) * below) * share).sum(0) / sum;
    log_sum_ = (largest + sum.log()).unsqueeze(1);
    entropy_ = (sum.log() - mean_below).unsqueeze(1);
    log_prob.copy_(of_ranks(3).sum(0) - log_sum_.squeeze(1));
    entropy.copy_(entropy_.squeeze(1));
  }

  Tensor backward(const Tensor& d_log_prob, const Tensor& d_entropy) override {
    const Tensor log_p = scores_ - log_sum_, p = log_p.exp();
    Tensor gradient = p * (-d_log_prob).unsqueeze(1);
    if (d_entropy.defined()) gradient -= p * (log_p + entropy_) * d_entropy.unsqueeze(1);
    if (gradient.size(1) > 0)
      gradient.scatter_add_(1, local_targets_,
                            d_log_prob.to(gradient.scalar_type()).unsqueeze(1).masked_fill(is_own_.logical_not(), 0));
    if (softcap_ > 0) gradient.mul_(slope_);
    return gradient.mul_(inverse_temperature_).to(type_).t();
  }

 private:
  Tensor wide_weight_, scores_, local_targets_, is_own_, log_sum_, entropy_, slope_;
  at::ScalarType type_;
  double inverse_temperature_, softcap_;
  VocabularySplit split_;
};

}  // namespace

std::unique_ptr<HeadChunk> make_head_chunk(const Tensor& weight_VD, const LogitRule& rule, int64_t num_chunk_rows,
                                           const VocabularySplit& split) {
  if (split.ranks != nullptr) return std::make_unique<SplitChunk>(weight_VD, rule, split);
  if (!kernels::has_training_kernels(weight_VD)) return std::make_unique<PlainChunk>(weight_VD, rule);
  const bool panels = weight_VD.scalar_type() == at::kBFloat16 && kernels::training_kernels().head.multiply != nullptr;
  if (panels && rule.softcap == 0 && weight_VD.size(1) % 2 == 0 && weight_VD.is_contiguous()) {
    return std::make_unique<PanelChunk>(weight_VD, rule.temperature, num_chunk_rows);
  }
  return std::make_unique<RowChunk>(weight_VD, rule);
}

}  // namespace troupe
