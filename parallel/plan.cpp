#include "parallel/plan.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace troupe {
namespace {

enum class Split { kWhole, kVocabulary, kQueryRows, kKeyRows, kQueryColumns, kInnerRows, kInnerColumns };

/// The plan itself, by the end of the parameter's name; what is not listed is whole on every tensor rank.
constexpr std::pair<std::string_view, Split> kSplits[] = {
    {"embed_tokens.weight", Split::kVocabulary},
    {"lm_head.weight", Split::kVocabulary},
    {"q_proj.weight", Split::kQueryRows},
    {"q_proj.bias", Split::kQueryRows},
    {"self_attn.sinks", Split::kQueryRows},
    {"q_b_proj.weight", Split::kQueryRows},
    {"kv_b_proj.weight", Split::kQueryRows},
    {"k_proj.weight", Split::kKeyRows},
    {"k_proj.bias", Split::kKeyRows},
    {"v_proj.weight", Split::kKeyRows},
    {"v_proj.bias", Split::kKeyRows},
    {"o_proj.weight", Split::kQueryColumns},
    {"gate_proj.weight", Split::kInnerRows},
    {"gate_proj.bias", Split::kInnerRows},
    {"up_proj.weight", Split::kInnerRows},
    {"up_proj.bias", Split::kInnerRows},
    {"down_proj.weight", Split::kInnerColumns},
};

Split split_of(const std::string& name) {
  for (const auto& [ending, split] : kSplits)
    if (name.ends_with(ending)) return split;
  return Split::kWhole;
}

}  // namespace

ParallelPlan::ParallelPlan(const ModelConfig& config, MeshDegrees degrees, MeshPlace place, PlanOptions options)
    : config_(config),
      local_config_(config),
      specs_(parameter_specs(config)),
      degrees_(degrees),
      place_(place),
      options_(std::move(options)) {
  if (options_.stages.empty()) options_.stages = {{0, num_units(), 0}};
  check_splits();
  if (degrees_.expert > 1) {
    const int64_t num_held = config_.moe.num_experts / degrees_.expert;
    local_config_.moe.held_begin = num_held * place_.expert;
    local_config_.moe.held_end = num_held * (place_.expert + 1);
  }
  if (degrees_.tensor == 1) return;
  const auto part_of = [&](int64_t size) {
    return even_begin(size, place_.tensor + 1) - even_begin(size, place_.tensor);
  };
  local_config_.num_attention_heads /= degrees_.tensor;
  local_config_.num_key_value_heads = std::max<int64_t>(1, config_.num_key_value_heads / degrees_.tensor);
  local_config_.intermediate_size = part_of(config_.intermediate_size);
  local_config_.moe.shared_intermediate_size = part_of(config_.moe.shared_intermediate_size);
  local_config_.vocab_size = part_of(config_.vocab_size);
}

void ParallelPlan::check_context() const {
  const auto refuse = [&](const char* what) {
    throw UsageError(concat("parallelism.context_parallel_degree = ", degrees_.context, ": ", config_.model_type, " ",
                            what, ", which is not supported over context ranks"));
  };
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const auto& layer = config_.layer(i);
    if (layer.window > 0) refuse("has layers with a sliding window");
    if (layer.chunk > 0) refuse("has layers with chunked attention");
    if (layer.mixer == Mixer::kDeltaNet) refuse("has layers whose recurrence goes through the whole row");
  }
}

void ParallelPlan::check_tensor() const {
  const auto refuse = [&](const char* what) {
    throw UsageError(concat("parallelism.tensor_parallel_degree = ", degrees_.tensor, ": ", config_.model_type, " has ",
                            what, ", which are not split over tensor ranks"));
  };
  if (config_.has(Mixer::kDeltaNet)) refuse("layers of the delta rule");
  if (config_.norm_over_heads) refuse("norms over all heads together");
  if (config_.has_experts() && !options_.sequence_parallel) {
    throw UsageError(concat("parallelism.tensor_parallel_degree = ", degrees_.tensor, ": ", config_.model_type,
                            " has experts: tensor ranks deal them tokens of their own, which needs "
                            "parallelism.enable_sequence_parallel"));
  }
}

void ParallelPlan::check_experts() const {
  const auto key = concat("parallelism.expert_parallel_degree = ", degrees_.expert, ": ");
  if (!config_.has_experts()) throw UsageError(concat(key, config_.model_type, " has no experts to spread"));
  const auto num_experts = config_.moe.num_experts;
  if (num_experts % degrees_.expert != 0) {
    throw UsageError(concat(key, "the model's ", num_experts, " experts do not divide by it (", num_experts, " = ",
                            degrees_.expert, " * ", num_experts / degrees_.expert, " + ", num_experts % degrees_.expert,
                            ")"));
  }
}

void ParallelPlan::check_splits() const {
  if (degrees_.context > 1) check_context();
  if (degrees_.tensor > 1) check_tensor();
  if (degrees_.expert > 1) check_experts();
  const int tensor = degrees_.tensor;
  const auto refuse = [&](const auto&... what) {
    throw UsageError(concat("parallelism.tensor_parallel_degree = ", tensor, ": ", what...));
  };
  const auto heads = config_.num_attention_heads, keys = config_.num_key_value_heads;
  if (heads % tensor != 0) refuse("the model's ", heads, " attention heads do not divide by it");
  if (keys % tensor != 0 && tensor % keys != 0)
    refuse("the model's ", keys,
           " key/value heads neither divide by it nor does it divide by them (one head can be "
           "repeated on several ranks, not split)");
  if (config_.moe.shared_intermediate_size > 0 && config_.moe.shared_intermediate_size < tensor)
    refuse("the shared expert has only ", config_.moe.shared_intermediate_size, " features");
  if (config_.intermediate_size < tensor) refuse("the MLP has only ", config_.intermediate_size, " features");
  if (config_.vocab_size < tensor) refuse("the vocabulary has only ", config_.vocab_size, " tokens");
  int64_t end = 0;
  for (const auto& stage : options_.stages) {
    require(stage.begin == end && stage.end >= stage.begin && stage.rank >= 0 && stage.rank < degrees_.pipeline,
            "pipeline: a stage of units ", stage.begin, " to ", stage.end, " on rank ", stage.rank, " follows unit ",
            end);
    end = stage.end;
  }
  require(end == num_units(), "pipeline: the stages end with unit ", end, " of ", num_units());
}

ParameterPart ParallelPlan::part(const ParameterSpec& whole, int tensor_rank) const {
  ParameterPart part{{std::vector<int64_t>(whole.shape.size(), 0), whole.shape}};
  const bool is_split = degrees_.tensor > 1;
  const auto cut = [&](size_t dimension, int64_t begin, int64_t end) {
    part.box.start[dimension] = begin;
    part.box.size[dimension] = end - begin;
  };
  const auto cut_evenly = [&](size_t dimension, int64_t count, int64_t width) {
    cut(dimension, even_begin(count, tensor_rank) * width, even_begin(count, tensor_rank + 1) * width);
  };
  if (is_split) {
    const int64_t heads = config_.num_attention_heads, keys = config_.num_key_value_heads, d = config_.head_dim;
    switch (split_of(whole.name)) {
      case Split::kVocabulary:
        cut_evenly(0, config_.vocab_size, 1);
        break;
      case Split::kQueryRows:                          // also of latent attention, whose heads have sizes of their own
        cut_evenly(0, heads, whole.shape[0] / heads);  // a gate beside each head goes with it
        break;
      case Split::kQueryColumns:
        cut_evenly(1, heads, whole.shape[1] / heads);
        break;
      case Split::kInnerRows:
        cut_evenly(0, whole.shape[0], 1);
        break;
      case Split::kInnerColumns:
        cut_evenly(1, whole.shape[1], 1);
        break;
      case Split::kKeyRows: {
        const int64_t first = even_begin(keys, tensor_rank), count = std::max<int64_t>(1, keys / degrees_.tensor);
        cut(0, first * d, (first + count) * d);
        const bool is_repeated = keys < degrees_.tensor;
        part.is_first = !is_repeated || tensor_rank % (degrees_.tensor / keys) == 0;
        part.sums_over_tensor = is_repeated;
        break;
      }
      case Split::kWhole: {
        part.is_first = tensor_rank == 0;
        // With whole tokens on every rank the gradients of layer norms and row biases are whole; head norms see only
        // their rank's heads, and a score reads only its rank's features.
        // What latent attention compresses is whole, but each rank's heads alone read it there.
        const auto is_of = [&](const char* what) { return whole.name.find(what) != std::string::npos; };
        const bool is_of_heads =
            is_of("q_norm.weight") || is_of("k_norm.weight") || is_of("self_attn.q_a_") || is_of("self_attn.kv_a_");
        part.sums_over_tensor = options_.sequence_parallel || is_of_heads || whole.name == "score.weight";
        break;
      }
    }
  }
  if (whole.unit == 0 && is_tied() && owner(0) != owner(num_units() - 1)) {
    part.sums_over_tied = true;
    part.is_first = part.is_first && place_.pipeline == owner(0);
  }
  return part;
}

std::optional<ParameterPart> ParallelPlan::part_of_experts(const ParameterSpec& whole, int expert_rank) const {
  const int64_t num_held = config_.moe.num_experts / degrees_.expert;
  const int64_t begin = std::max(whole.experts_begin, num_held * expert_rank);
  const int64_t end = std::min(whole.experts_end, num_held * (expert_rank + 1));
  if (begin >= end) return std::nullopt;
  ParameterPart part{{std::vector<int64_t>(whole.shape.size(), 0), whole.shape}};
  const bool is_stacked = whole.experts_end - whole.experts_begin > 1 || config_.moe.form == ExpertForm::kStacked;
  if (is_stacked) {
    part.box.start[0] = begin;
    part.box.size[0] = end - begin;
  }
  return part;
}

int ParallelPlan::owner(int64_t unit) const {
  const auto found =
      std::find_if(options_.stages.begin(), options_.stages.end(), [&](const auto& stage) { return unit < stage.end; });
  return found->rank;
}

bool ParallelPlan::holds(int64_t unit) const {
  if (owner(unit) == place_.pipeline) return true;
  return unit == 0 && is_tied() && owner(num_units() - 1) == place_.pipeline;
}

std::vector<PlanOptions::Stage> ParallelPlan::own_stages() const {
  std::vector<PlanOptions::Stage> own;
  for (const auto& stage : options_.stages)
    if (stage.rank == place_.pipeline) own.push_back(stage);
  return own;
}

}  // namespace troupe
