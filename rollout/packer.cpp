#include "rollout/packer.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace troupe {
namespace {

/// at::cat would wake its own pool of threads for each small copy.
Tensor join_rows(std::vector<Tensor>& parts) {
  int64_t rows = 0;
  bool same = true;
  for (const auto& part : parts) {
    rows += part.size(0);
    same = same && part.scalar_type() == parts[0].scalar_type();
  }
  const Tensor joined = at::empty({rows, parts[0].size(1)}, same ? parts[0].scalar_type() : at::kFloat);
  auto* to = static_cast<std::byte*>(joined.data_ptr());
  for (auto& part : parts) {
    if (!same) part = part.to(at::kFloat);
    std::memcpy(to, part.const_data_ptr(), part.nbytes());
    to += part.nbytes();
  }
  return joined;
}

/// Rows of heads [N, d, ...] whose first `rotated` are turned in neighbouring pairs, in the order of halves: what the
/// engine's rotation expects. A product of query and key does not see an order that both have.
Tensor in_halves(const Tensor& heads, int64_t rotated) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < rotated; ++i) order.push_back(i < rotated / 2 ? 2 * i : 2 * (i - rotated / 2) + 1);
  for (int64_t i = rotated; i < heads.size(1); ++i) order.push_back(i);
  return heads.index_select(1, at::tensor(order, at::kLong));
}

std::vector<float> padded(std::vector<float> values, int64_t num_panels) {
  if (!values.empty()) values.resize(static_cast<size_t>(num_panels * kPanelColumns), 0.0f);
  return values;
}

std::vector<float> to_vector(const Tensor& tensor) {
  const Tensor values = tensor.detach().to(at::kFloat).contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

}  // namespace

template <class T>
const Tensor* Packer<T>::find(const std::string& name) const {
  const auto found = snapshot_.tensors.find(name);
  return found == snapshot_.tensors.end() ? nullptr : &found->second;
}

template <class T>
Tensor Packer<T>::get(const std::string& name) const {
  return snapshot_.tensors.at(name).detach();
}

template <class T>
std::vector<float> Packer<T>::vector(const std::string& name) const {
  const Tensor* tensor = find(name);
  return tensor == nullptr ? std::vector<float>{} : to_vector(*tensor);
}

template <class T>
std::vector<float> Packer<T>::norm(const std::string& prefix, const std::string& name) const {
  if (name.empty()) return {};
  auto values = vector(prefix + name + ".weight");
  if (config_.norm_from_one) {
    for (auto& value : values) value += 1;
  }
  return values;
}

template <class T>
void Packer<T>::plan_matrix(PackedMatrix<T>& matrix, std::vector<Tensor> parts, bool by_turns) {
  for (auto& part : parts) {
    if (part.scalar_type() != at::kFloat && part.scalar_type() != at::kBFloat16) part = part.to(at::kFloat);
    part = part.contiguous();
  }
  const int64_t depth = parts[0].size(1);
  // Rows of a panel may come from two tensors; these are small enough to be joined first.
  if (!by_turns && parts.size() > 1) parts = {join_rows(parts)};
  matrix.depth = sizeof(T) == 2 ? (depth + 1) / 2 * 2 : depth;
  for (size_t i = 0; i < parts.size(); ++i) {
    matrix.num_panels += num_panels_for(parts[i].size(0));
    jobs_.push_back({parts[i], &matrix, static_cast<int64_t>(parts.size()), static_cast<int64_t>(i)});
  }
  offsets_.emplace_back(&matrix, elements_);
  elements_ += static_cast<size_t>(matrix.num_panels * matrix.panel_elements());
  elements_ = (elements_ + 63) / 64 * 64;
}

template <class T>
void Packer<T>::plan_mlp(PackedMlp<T>& mlp, const Tensor& gate, const Tensor& up, const Tensor& down) {
  mlp.size = gate.size(0);
  plan_matrix(mlp.gate_up, {gate, up}, /*by_turns=*/true);
  plan_matrix(mlp.down, {down});
}

template <class T>
void Packer<T>::plan_named_mlp(PackedMlp<T>& mlp, const std::string& prefix) {
  plan_mlp(mlp, get(prefix + "gate_proj.weight"), get(prefix + "up_proj.weight"), get(prefix + "down_proj.weight"));
  mlp.gate_bias = padded(vector(prefix + "gate_proj.bias"), mlp.gate_up.num_panels / 2);
  mlp.up_bias = padded(vector(prefix + "up_proj.bias"), mlp.gate_up.num_panels / 2);
  mlp.down_bias = padded(vector(prefix + "down_proj.bias"), mlp.down.num_panels);
}

template <class T>
void Packer<T>::plan() {
  model_.layers.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) plan_layer(i);
  model_.final_norm = norm("model.", "norm");
  const std::string embedding = "model.embed_tokens.weight";
  plan_matrix(model_.head, {get(config_.tie_word_embeddings ? embedding : "lm_head.weight")});
  if (!config_.tie_word_embeddings) plan_matrix(model_.embedding, {get(embedding)});
  const auto frequencies = [&](const RopeConfig& rope) {
    const auto values = rope_inverse_frequencies(rope, config_.rotated_dim());
    return std::vector<float>(values.begin(), values.end());
  };
  model_.inverse_frequencies = frequencies(config_.rope);
  model_.local_inverse_frequencies = frequencies(config_.local_rope);
  place();
}

template <class T>
void Packer<T>::plan_layer(int64_t index) {
  auto& layer = model_.layers[static_cast<size_t>(index)];
  const auto& description = config_.layer(index);
  const std::string prefix = concat("model.layers.", index, ".");
  const auto& names = config_.names;
  std::string output = prefix + "self_attn.o_proj";
  switch (description.mixer) {
    case Mixer::kAttention:
      plan_attention(layer.attention, prefix + "self_attn.");
      break;
    case Mixer::kLatentAttention:
      plan_latent(layer.latent, prefix + "self_attn.");
      break;
    case Mixer::kDeltaNet:
      plan_delta(layer.delta, prefix + "linear_attn.");
      output = prefix + "linear_attn.out_proj";
      break;
  }
  plan_matrix(layer.output, {get(output + ".weight")});
  layer.output_bias = padded(vector(output + ".bias"), layer.output.num_panels);
  layer.mixer_input_norm = norm(prefix, names.mixer_input_norm);
  layer.mixer_output_norm = norm(prefix, names.mixer_output_norm);
  layer.mlp_input_norm = norm(prefix, names.mlp_input_norm);
  layer.mlp_output_norm = norm(prefix, names.mlp_output_norm);
  if (description.has_experts) {
    plan_experts(layer.experts, prefix + names.experts + ".");
  } else {
    plan_named_mlp(layer.mlp, prefix + names.mlp + ".");
  }
}

template <class T>
void Packer<T>::plan_attention(PackedAttention<T>& attention, const std::string& prefix) {
  const int64_t d = config_.head_dim, num_heads = config_.num_attention_heads;
  std::vector<Tensor> rows, biases, gates, gate_biases;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    const bool is_query = name[0] == 'q', is_value = name[0] == 'v';
    const auto add = [&](const std::string& full_name, std::vector<Tensor>& parts, std::vector<Tensor>& gate_parts) {
      const Tensor* tensor = find(full_name);
      if (tensor == nullptr) return;
      auto heads = tensor->detach().view({-1, d, tensor->dim() == 2 ? tensor->size(1) : 1});
      if (is_query && config_.attention_gate) {  // by head: d rows of the query, d of the gate
        const auto halves = heads.view({num_heads, 2, d, heads.size(2)});
        gate_parts.push_back(halves.select(1, 1).reshape({num_heads * d, -1}));
        heads = halves.select(1, 0);
      }
      if (config_.rope_interleaved && !is_value) heads = in_halves(heads, config_.rotated_dim());
      parts.push_back(heads.reshape({heads.size(0) * d, -1}));
    };
    add(prefix + name + ".weight", rows, gates);
    add(prefix + name + ".bias", biases, gate_biases);
  }
  rows.insert(rows.end(), gates.begin(), gates.end());
  biases.insert(biases.end(), gate_biases.begin(), gate_biases.end());
  plan_matrix(attention.projection, rows);
  for (const auto& bias : biases) {
    const auto values = to_vector(bias);
    attention.bias.insert(attention.bias.end(), values.begin(), values.end());
  }
  if (config_.query_key_norm) {
    attention.query_norm = norm(prefix, "q_norm");
    attention.key_norm = norm(prefix, "k_norm");
  }
  attention.sinks = vector(prefix + "sinks");
}

template <class T>
void Packer<T>::plan_latent(PackedLatent<T>& latent, const std::string& prefix) {
  const auto& sizes = config_.latent;
  const int64_t num_heads = config_.num_attention_heads;
  const auto ordered = [&](const Tensor& rotary_rows) {  // [N, rotary, depth]
    return config_.rope_interleaved ? in_halves(rotary_rows, sizes.rotary_dim) : rotary_rows;
  };
  std::string query = prefix + "q_proj.weight";
  if (sizes.query_rank > 0) {
    query = prefix + "q_b_proj.weight";
    plan_matrix(latent.query_down, {get(prefix + "q_a_proj.weight")});
    latent.query_down_bias = vector(prefix + "q_a_proj.bias");
    latent.query_norm = vector(prefix + "q_a_layernorm.weight");
  }
  const Tensor heads = get(query).view({num_heads, sizes.query_dim(), -1});
  const Tensor rotated = ordered(heads.narrow(1, sizes.plain_dim, sizes.rotary_dim));
  plan_matrix(latent.query, {at::cat({heads.narrow(1, 0, sizes.plain_dim), rotated}, 1).flatten(0, 1)});

  const auto split_key = [&](const Tensor& rows) {  // [rank + rotary, depth]
    const Tensor key = ordered(rows.narrow(0, sizes.key_value_rank, sizes.rotary_dim).unsqueeze(0)).squeeze(0);
    return at::cat({rows.narrow(0, 0, sizes.key_value_rank), key});
  };
  plan_matrix(latent.key_value_down, {split_key(get(prefix + "kv_a_proj_with_mqa.weight"))});
  if (const Tensor* bias = find(prefix + "kv_a_proj_with_mqa.bias")) {
    latent.key_value_down_bias = to_vector(split_key(bias->detach().unsqueeze(1)));
  }
  latent.key_value_norm = vector(prefix + "kv_a_layernorm.weight");
  const Tensor expansion = get(prefix + "kv_b_proj.weight").view({num_heads, sizes.plain_dim + sizes.value_dim, -1});
  latent.query_to_latent.resize(static_cast<size_t>(num_heads));
  latent.latent_to_value.resize(static_cast<size_t>(num_heads));
  for (int64_t h = 0; h < num_heads; ++h) {
    plan_matrix(latent.query_to_latent[static_cast<size_t>(h)], {expansion[h].narrow(0, 0, sizes.plain_dim).t()});
    plan_matrix(latent.latent_to_value[static_cast<size_t>(h)],
                {expansion[h].narrow(0, sizes.plain_dim, sizes.value_dim)});
  }
}

template <class T>
void Packer<T>::plan_delta(PackedDelta<T>& delta, const std::string& prefix) {
  const auto& sizes = config_.delta;
  const int64_t group = sizes.num_value_heads / sizes.num_key_heads, values = group * sizes.value_dim;
  std::vector<Tensor> rows;
  if (sizes.joined_projections) {  // by key head
    const Tensor qkvz = get(prefix + "in_proj_qkvz.weight").view({sizes.num_key_heads, -1, config_.hidden_size});
    const Tensor ba = get(prefix + "in_proj_ba.weight").view({sizes.num_key_heads, 2, group, config_.hidden_size});
    for (const auto& part : qkvz.split_with_sizes({sizes.key_dim, sizes.key_dim, values, values}, 1)) {
      rows.push_back(part.flatten(0, 1));
    }
    for (int64_t which = 0; which < 2; ++which) rows.push_back(ba.select(1, which).flatten(0, 1));
  } else {
    for (const char* name : {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}) {
      rows.push_back(get(prefix + name + ".weight"));
    }
  }
  plan_matrix(delta.projection, rows);
  delta.convolution = to_vector(get(prefix + "conv1d.weight").squeeze(1).t());
  delta.decay_rate = to_vector(get(prefix + "A_log").to(at::kFloat).exp());
  delta.dt_bias = vector(prefix + "dt_bias");
  delta.norm = vector(prefix + "norm.weight");
}

template <class T>
void Packer<T>::plan_experts(PackedExperts<T>& experts, const std::string& prefix) {
  const auto& moe = config_.moe;
  const auto& names = config_.names;
  plan_matrix(experts.router, {get(prefix + names.router + ".weight")});
  experts.router_bias = padded(vector(prefix + names.router + ".bias"), experts.router.num_panels);
  experts.choice_bias = vector(prefix + names.router + ".e_score_correction_bias");
  experts.experts.resize(static_cast<size_t>(moe.num_experts));
  for (int64_t e = 0; e < moe.num_experts; ++e) {
    auto& expert = experts.experts[static_cast<size_t>(e)];
    if (moe.form == ExpertForm::kSeparate) {
      const auto own = [&](const std::string& name) {
        return get(concat(prefix, "experts.", e, ".", name, ".weight"));
      };
      plan_mlp(expert, own(names.expert_gate), own(names.expert_up), own(names.expert_down));
      continue;
    }
    const auto own = [&](const std::string& name) { return get(prefix + "experts." + name)[e].t(); };
    const auto half = [&](const Tensor& rows, int64_t which) {
      const int64_t size = moe.intermediate_size;
      return moe.gate_up_take_turns ? rows.slice(0, which, 2 * size, 2) : rows.narrow(0, which * size, size);
    };
    const Tensor gate_up = own("gate_up_proj");
    plan_mlp(expert, half(gate_up, 0), half(gate_up, 1), own("down_proj"));
    if (!moe.expert_bias) continue;
    const Tensor bias = get(prefix + "experts.gate_up_proj_bias")[e];
    expert.gate_bias = padded(to_vector(half(bias, 0)), expert.gate_up.num_panels / 2);
    expert.up_bias = padded(to_vector(half(bias, 1)), expert.gate_up.num_panels / 2);
    expert.down_bias = padded(to_vector(get(prefix + "experts.down_proj_bias")[e]), expert.down.num_panels);
  }
  if (moe.shared_intermediate_size == 0) return;
  plan_named_mlp(experts.shared, prefix + names.shared_expert + ".");
  if (moe.shared_gate) plan_matrix(experts.shared_gate, {get(prefix + names.shared_expert + "_gate.weight")});
}

template <class T>
void Packer<T>::place() {
  model_.memory = take_pages(elements_ * sizeof(T));
  const T* base = reinterpret_cast<const T*>(model_.memory->data());
  for (const auto& [matrix, offset] : offsets_) matrix->panels = base + offset;
  if (config_.tie_word_embeddings) model_.embedding = model_.head;
}

template class Packer<float>;
template class Packer<Bf16>;

}  // namespace troupe
