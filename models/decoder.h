// The decoder that a ModelConfig describes: the network on one device. Knows no family, no mesh, no checkpoint format,
// no RL. What a layer is made of is in decoder_layer.cpp.
//
// Shape legend: T tokens of a packed row, D hidden size, H query heads, K key/value heads, d head size, F MLP size, V
// vocabulary.
#pragma once

#include "models/config.h"
#include "models/exchange.h"
#include "models/layout.h"
#include "models/torch.h"
#include "models/weights.h"

namespace troupe {

namespace blocks {
struct AttentionContext;
}

/// Called around every unit of the network (see parameter_specs): techniques such as sharding and recompute are applied
/// from outside by giving another runner. `body` computes the unit's output from its input; the default just calls it.
/// Unit 0's input is an undefined tensor (token ids are held by the body); unit L+1's output is the normalised hidden
/// state. A body owns all it needs but the Decoder: it may be kept and called again during backward.
class UnitRunner {
 public:
  using Body = std::function<Tensor(const Tensor& x)>;
  virtual ~UnitRunner() = default;
  virtual Tensor run(int64_t unit, const Body& body, const Tensor& x) { return body(x); }
};

class Decoder {
 public:
  explicit Decoder(ModelConfig config);

  const ModelConfig& config() const { return config_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }

  /// Gives the parameter its tensor (a leaf owned by the caller; all of one dtype, but fp32 for what is not trained).
  /// Throws Error on unknown names or shapes.
  void bind(const std::string& name, Tensor parameter);
  /// Binds every tensor of `weights` and throws Error naming what is missing or left over.
  void bind_all(const TensorMap& weights);
  /// Tensor bound to a name.
  const Tensor& parameter(const std::string& name) const;

  /// Applied from outside where layers are split over devices; the configuration is then that of this device's part.
  void set_exchange(std::shared_ptr<const Exchange> exchange) { exchange_ = std::move(exchange); }
  const Exchange& exchange() const { return *exchange_; }

  /// tokens_T int64 or int32 -> hidden state after the final norm [T, D], in the parameters' dtype. Differentiable.
  Tensor forward(const Tensor& tokens_T, const PackedLayout& layout, UnitRunner& runner) const;
  Tensor forward(const Tensor& tokens_T, const PackedLayout& layout) const;
  /// The part of `forward` from unit `begin` to before `end`; x is the output of unit begin - 1 (undefined for 0).
  Tensor forward_units(int64_t begin, int64_t end, const Tensor& x, const Tensor& tokens_T, const PackedLayout& layout,
                       UnitRunner& runner) const;
  int64_t num_units() const { return config_.num_hidden_layers + 2; }

  /// Weight [V, D] of the output head (the embedding where tied; of sequence classification its label weights).
  const Tensor& head_weight() const;
  /// hidden_TD -> fp32 logits [T, V] (float64 for float64 parameters). For tests and verify; training uses
  /// training/log_probs.h, which never holds a whole batch's logits.
  Tensor logits(const Tensor& hidden_TD) const;

 private:
  using Context = std::shared_ptr<const blocks::AttentionContext>;
  class Layer;  // decoder_layer.cpp

  /// Undefined where the network has no such parameter.
  Tensor optional_parameter(const std::string& name) const;
  Tensor embed(const Tensor& tokens_T) const;
  /// What layers of one kind share over a row.
  Context make_context(const LayerConfig& layer, const PackedLayout& layout, const Tensor& x_TD) const;
  Tensor layer(int64_t index, const Tensor& x_TD, const Context& context) const;

  ModelConfig config_;
  std::vector<ParameterSpec> specs_;
  std::map<std::string, Tensor> parameters_;  // on the meta device where not bound
  std::shared_ptr<const Exchange> exchange_ = std::make_shared<Exchange>();
};

}  // namespace troupe
