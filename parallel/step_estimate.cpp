#include "parallel/step_estimate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/blocks/latent_attention.h"
#include "parallel/context_tokens.h"

namespace troupe {
namespace {

constexpr int64_t kMasterBytes = 4;
constexpr int64_t kNumHeadRows = 512;  // LogProbOptions::num_chunk_rows

/// One rank's part of the step, counted.
class Counter {
 public:
  Counter(const ModelConfig& config, const MeshDegrees& degrees, const MeshPlace& place, const ParallelOptions& options,
          const StepShape& shape, const DeviceFigures& device)
      : config_(config),
        degrees_(degrees),
        options_(options),
        shape_(shape),
        device_(device),
        plan_(config, degrees, place, plan_options(config, degrees, options)),
        element_bytes_(static_cast<int64_t>(c10::elementSize(options.sharding.parameter_dtype))) {
    splits_tokens_ = degrees.tensor > 1 && options.sequence_parallel;
    const ContextTokens tokens(shape.tokens_per_microbatch, place.context, degrees.context,
                               options.head_tail && degrees.context > 1, splits_tokens_ ? degrees.tensor : 1);
    num_tokens_ = degrees.tensor == 1 && degrees.context == 1 ? shape.tokens_per_microbatch : tokens.num_local();
    num_targets_ = shape.tokens_per_microbatch / degrees.context;
    stages_ = degrees.pipeline > 1 ? plan_.own_stages() : std::vector<PlanOptions::Stage>{{0, plan_.num_units(), 0}};
    for (int64_t unit = 0; unit < plan_.num_units(); ++unit) units_.push_back(count_unit(unit));
    for (const auto& stage : stages_) num_layers_ += layers_of(stage);
    if (degrees.pipeline > 1) {
      schedule_ = make_pipeline_schedule(options.pipeline.schedule, degrees.pipeline, shape.num_microbatches,
                                         options.pipeline.stages_per_rank);
    }
  }

  RankEstimate estimate() {
    RankEstimate result;
    result.place = plan_.place();
    result.memory = memory();
    shard_transfers();
    tensor_transfers();
    expert_transfers();
    context_transfers();
    pipeline_transfers();
    const auto groups = own_groups();
    for (const auto& transfer : transfers_) {
      const double seconds = transfer_seconds(groups, transfer);
      const bool is_of_shards =
          transfer.group == "shards" || transfer.group == "replicas" || transfer.group == "expert_shards";
      (is_of_shards ? result.shard_transfer_s : result.other_transfer_s) += seconds;
    }
    result.transfers = std::move(transfers_);
    result.flops = executed_flops();
    result.compute_s = result.flops / (device_.peak_flops * device_.efficiency);
    return result;
  }

  double model_flops_per_microbatch() const { return forward_flops() * 3; }

 private:
  struct Unit {
    bool is_held = false;
    int64_t numel = 0, padded = 0;  // this rank's part before sharding
    int64_t summed_numel = 0;       // of parameters whose gradient is a sum over tensor ranks
    int64_t num_constants = 0;
    int64_t experts_numel = 0, experts_padded = 0;  // of experts that lie apart
    bool is_tied = false;
  };

  int num_shards() const { return degrees_.shard * degrees_.context; }
  int num_expert_shards() const { return degrees_.num_expert_ranks() / degrees_.expert; }
  int64_t last_unit() const { return plan_.num_units() - 1; }
  bool has_unit(int64_t unit) const {
    return std::any_of(stages_.begin(), stages_.end(),
                       [&](const auto& stage) { return stage.begin <= unit && unit < stage.end; });
  }
  int64_t layers_of(const PlanOptions::Stage& stage) const {
    return std::min(stage.end, last_unit()) - std::max<int64_t>(stage.begin, 1);
  }
  /// Sums over this rank's layers; those that are recomputed alone, or all.
  template <class Count>
  int64_t sum_layers(bool recomputed_alone, const Count& count) const {
    int64_t sum = 0;
    for (int64_t unit = 1; unit < last_unit(); ++unit)
      if (has_unit(unit) && (!recomputed_alone || is_recomputed(unit))) sum += count(unit - 1);
    return sum;
  }
  bool is_recomputed(int64_t unit) const { return recomputes(options_.recompute, unit, config_.num_hidden_layers); }
  int64_t num_recomputed_layers() const {
    return sum_layers(true, [](int64_t) { return 1; });
  }

  Unit count_unit(int64_t index) const {
    Unit unit;
    unit.is_held = plan_.holds(index);
    if (!unit.is_held) return unit;
    for (const auto& spec : plan_.whole_specs()) {
      if (spec.unit != index) continue;
      if (spec.is_of_experts() && plan_.spreads_experts()) {
        if (const auto part = plan_.part_of_experts(spec, plan_.place().expert))
          unit.experts_numel += c10::multiply_integers(part->box.size);
        continue;
      }
      const auto part = plan_.part(spec);
      if (!spec.is_trained) unit.num_constants += c10::multiply_integers(part.box.size);
      unit.numel += c10::multiply_integers(part.box.size);
      if (part.sums_over_tensor && degrees_.tensor > 1) unit.summed_numel += c10::multiply_integers(spec.shape);
      unit.is_tied = unit.is_tied || part.sums_over_tied;
    }
    const auto padded = [](int64_t numel, int64_t shards) { return (numel + shards - 1) / shards * shards; };
    unit.padded = padded(unit.numel, num_shards());
    unit.experts_padded = padded(unit.experts_numel, num_expert_shards());
    return unit;
  }

  void add(const char* group, const char* operation, const char* label, int64_t calls, int64_t bytes_a_call) {
    if (calls > 0) transfers_.push_back({group, operation, label, calls, calls * bytes_a_call});
  }

  /// How often a unit is gathered in a step (parallel/fully_sharded.cpp).
  int64_t num_gathers(int64_t unit) const {
    const auto& mode = options_.sharding.reshard_after_forward;
    if (mode == "never") return 1;
    const int64_t m = shape_.num_microbatches;
    // What the loss needs is kept from forward to backward; where all forwards come first, over all of them.
    const bool stays = degrees_.pipeline > 1 && options_.pipeline.schedule == "GPipe";
    const bool is_head = unit == 0 && plan_.is_tied() && has_unit(last_unit());
    if (unit == 0) return (has_unit(0) ? m : 0) + (is_head ? (stays ? 1 : m) : 0);
    if (unit < last_unit()) return 2 * m;
    return mode == "always" ? 2 * m : stays ? 1 : m;
  }

  void shard_transfers() {
    const int64_t num_reductions = degrees_.pipeline > 1 ? 1 : shape_.num_microbatches;
    const auto reduce_bytes = static_cast<int64_t>(c10::elementSize(options_.sharding.reduce_dtype));
    const auto add_one = [&](const char* group, const char* operation, const char* label, int64_t calls,
                             int64_t bytes) {
      for (auto& transfer : transfers_) {
        if (transfer.group != group || transfer.operation != operation || transfer.label != label) continue;
        transfer.calls += calls;
        transfer.bytes += calls * bytes;
        return;
      }
      add(group, operation, label, calls, bytes);
    };
    for (int64_t index = 0; index < plan_.num_units(); ++index) {
      const auto& unit = units_[static_cast<size_t>(index)];
      if (!unit.is_held) continue;
      // The embedding's gradient waits for the end of the step: nothing comes before it in backward.
      const int64_t reductions = index == 0 ? 1 : num_reductions;
      if (num_shards() > 1) {
        add_one("shards", "all_gather", "unit", num_gathers(index), unit.padded * element_bytes_);
        add_one("shards", "reduce_scatter", "unit", reductions, unit.padded * reduce_bytes);
        if (unit.num_constants > 0) add_one("shards", "all_reduce", "constants", 1, unit.num_constants * kMasterBytes);
      }
      if (num_expert_shards() > 1 && unit.experts_padded > 0) {
        add_one("expert_shards", "all_gather", "experts", num_gathers(index), unit.experts_padded * element_bytes_);
        add_one("expert_shards", "reduce_scatter", "experts", reductions, unit.experts_padded * reduce_bytes);
      }
      if (degrees_.replicate > 1) {
        add_one("replicas", "all_reduce", "unit", reductions, unit.padded / num_shards() * reduce_bytes);
        if (unit.experts_padded > 0)
          add_one("replicas", "all_reduce", "experts", reductions,
                  unit.experts_padded / num_expert_shards() * reduce_bytes);
      }
      if (unit.summed_numel > 0)
        add_one("tensor", "all_reduce", "over tensor ranks", reductions, unit.summed_numel * kMasterBytes);
      if (unit.is_tied) add_one("tied", "all_reduce", "tied stages", 1, unit.padded * kMasterBytes);
    }
  }

  void tensor_transfers() {
    if (degrees_.tensor == 1) return;
    // Blocks that are split: attention, and the MLP or the expert that every token goes to.
    const auto num_blocks = [this](int64_t layer) {
      return config_.layer(layer).has_experts && config_.moe.shared_intermediate_size == 0 ? 1 : 2;
    };
    const int64_t m = shape_.num_microbatches;
    const int64_t blocks = sum_layers(false, num_blocks), again = sum_layers(true, num_blocks);
    const int64_t bytes = num_tokens_ * config_.hidden_size * element_bytes_;
    const int64_t first = has_unit(0) ? 1 : 0, last = has_unit(last_unit()) ? 1 : 0;
    if (splits_tokens_) {
      // In: gathers forward, scatters backward. Out: the reverse. Two of each a layer.
      add("tensor", "all_gather", "tokens of the tensor ranks", m * (2 * blocks + again + first + last), bytes);
      add("tensor", "reduce_scatter", "sums of the tensor ranks", m * (2 * blocks + again + first + last), bytes);
    } else {
      add("tensor", "all_reduce", "sums of the tensor ranks", m * (2 * blocks + again + first + last), bytes);
    }
    if (last != 0) {
      const int64_t chunks = (num_targets_ + kNumHeadRows - 1) / kNumHeadRows;
      const int64_t wide = std::max<int64_t>(4, element_bytes_);
      transfers_.push_back(
          {"tensor", "all_gather", "softmax", m * chunks, m * degrees_.tensor * 4 * num_targets_ * wide});
    }
  }

  void expert_transfers() {
    if (degrees_.expert == 1) return;
    const auto has_experts = [this](int64_t layer) { return config_.layer(layer).has_experts ? 1 : 0; };
    const int64_t m = shape_.num_microbatches, backward = m * sum_layers(false, has_experts);
    const int64_t forward = backward + m * sum_layers(true, has_experts);
    const int64_t pairs = num_rows() * config_.moe.num_experts_per_token;
    const int64_t rows = pairs * config_.hidden_size * element_bytes_;
    const int64_t weights = pairs * std::max<int64_t>(4, element_bytes_);
    add("experts", "all_to_all", "rows of experts", forward, config_.moe.num_experts * 8);
    const auto add_sum = [&](const char* label, int64_t with_rows, int64_t with_weights) {
      transfers_.push_back(
          {"experts", "all_to_all", label, with_rows + with_weights, with_rows * rows + with_weights * weights});
    };
    add_sum("to experts", forward + backward, forward);
    add_sum("from experts", forward + backward, backward);
  }

  void context_transfers() {
    if (degrees_.context == 1) return;
    const int64_t ranks = degrees_.context, m = shape_.num_microbatches;
    const auto numel_of = [this](int64_t layer) {
      const auto& local = plan_.local_config();
      const bool is_latent = config_.layer(layer).mixer == Mixer::kLatentAttention;
      return num_tokens_ * 2 *
             (is_latent ? local.num_attention_heads * blocks::latent_head_dim(local.latent)
                        : local.num_key_value_heads * local.head_dim);
    };
    const int64_t all = sum_layers(false, numel_of), passes = 2 * num_layers_ + num_recomputed_layers();
    transfers_.push_back({"context", "send", "attention keys and values", m * passes * (ranks - 1),
                          m * (ranks - 1) * (2 * all + sum_layers(true, numel_of)) * element_bytes_});
    transfers_.push_back({"context", "send", "attention gradients", m * num_layers_ * ranks,
                          m * ranks * all * std::max<int64_t>(4, element_bytes_)});
  }

  void pipeline_transfers() {
    if (degrees_.pipeline == 1) return;
    int64_t calls = 0;
    const auto own = plan_.place().pipeline;
    const auto& all = plan_.options().stages;
    for (size_t s = 0; s + 1 < all.size(); ++s) {
      if (all[s].rank == all[s + 1].rank) continue;
      calls += all[s].rank == own ? 1 : 0;      // activations on
      calls += all[s + 1].rank == own ? 1 : 0;  // their gradient back
    }
    add("pipeline", "send", "micro-batch", calls * shape_.num_microbatches,
        num_rows() * config_.hidden_size * element_bytes_);
  }

  /// Those of the mesh's groups that this rank is in.
  std::vector<MeshGroup> own_groups() const {
    auto groups = Mesh(degrees_).groups();
    const int rank = Mesh(degrees_).rank(plan_.place());
    std::erase_if(groups, [rank](const MeshGroup& group) {
      return std::find(group.members.begin(), group.members.end(), rank) == group.members.end();
    });
    return groups;
  }

  /// A ring: every rank passes all but its own part on; the devices of a node share its network.
  double transfer_seconds(const std::vector<MeshGroup>& groups, const Transfer& transfer) const {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const MeshGroup& candidate) { return candidate.name == transfer.group; });
    require(group != groups.end(), "no group ", transfer.group, " of this rank");
    const int rank = Mesh(degrees_).rank(plan_.place());
    const auto node = [&](int member) { return member / device_.devices_per_node; };
    const auto n = static_cast<double>(group->members.size());
    const auto in_node = std::count_if(group->members.begin(), group->members.end(),
                                       [&](int member) { return node(member) == node(rank); });
    const bool leaves_node = in_node != static_cast<std::ptrdiff_t>(group->members.size());
    const double rate =
        leaves_node ? std::min(device_.node_bytes_per_s, device_.network_bytes_per_s * static_cast<double>(in_node))
                    : device_.node_bytes_per_s;
    const double share = transfer.operation == "send"         ? 1
                         : transfer.operation == "all_reduce" ? 2 * (n - 1) / n
                                                              : (n - 1) / n;
    return share * static_cast<double>(transfer.bytes) / rate;
  }

  /// Rows that this rank keeps between layers.
  int64_t num_rows() const { return splits_tokens_ ? num_tokens_ / degrees_.tensor : num_tokens_; }

  /// Tokens that one of a document sees in a layer, on average.
  double tokens_seen(const LayerConfig& layer) const {
    const auto length = static_cast<double>(std::min(shape_.sequence_length, shape_.tokens_per_microbatch));
    double seen = (length + 1) / 2;
    const auto window = static_cast<double>(layer.window), chunk = static_cast<double>(layer.chunk);
    if (layer.window > 0 && window < length) seen = (window * (window + 1) / 2 + (length - window) * window) / length;
    if (layer.chunk > 0 && chunk < length) seen = std::min(seen, (chunk + 1) / 2);
    return seen;
  }

  /// Whole on every tensor rank, each of which gives it the tokens that it keeps between layers: routers and their
  /// like.
  bool meets_kept_rows(const ParameterSpec& spec) const {
    const auto& names = config_.names;
    const auto prefix = concat(".", names.experts, ".");
    return config_.has_experts() && (spec.name.ends_with(concat(prefix, names.router, ".weight")) ||
                                     spec.name.ends_with(concat(prefix, names.shared_expert, "_gate.weight")));
  }

  /// Products of one micro-batch's forward on this rank (training/flops.h counts the same over a whole row).
  double forward_flops() const {
    double parameters = 0;
    for (const auto& spec : plan_.whole_specs()) {
      if (spec.shape.size() < 2 || spec.unit == 0 || spec.unit == last_unit() || !has_unit(spec.unit)) continue;
      if (spec.is_of_experts()) {
        // Wherever they lie: each rank's tokens meet as many.
        const auto& moe = config_.moe;
        parameters += static_cast<double>(c10::multiply_integers(spec.shape)) * moe.num_experts_per_token /
                      static_cast<double>(moe.num_experts) / degrees_.tensor;
      } else {
        const auto numel = static_cast<double>(c10::multiply_integers(plan_.part(spec).box.size));
        parameters += meets_kept_rows(spec) ? numel / degrees_.tensor : numel;
      }
    }
    const double tokens = static_cast<double>(shape_.tokens_per_microbatch) / degrees_.context;
    const auto& local = plan_.local_config();
    double flops = 2 * parameters * tokens;
    for (int64_t unit = 1; unit < last_unit(); ++unit) {
      if (!has_unit(unit)) continue;
      const auto& layer = config_.layer(unit - 1);
      const auto sizes =
          layer.mixer == Mixer::kAttention ? 2 * local.head_dim : local.latent.query_dim() + local.latent.value_dim;
      flops += 2.0 * static_cast<double>(local.num_attention_heads * sizes) * tokens * tokens_seen(layer);
    }
    if (has_unit(last_unit()))
      flops += 2.0 * static_cast<double>(local.vocab_size) * static_cast<double>(config_.hidden_size) * tokens;
    return flops;
  }

  double executed_flops() const {
    const double again =
        num_layers_ == 0 ? 0 : static_cast<double>(num_recomputed_layers()) / static_cast<double>(num_layers_);
    return forward_flops() * (3 + again) * shape_.num_microbatches;
  }

  /// Most activations that are kept at one time, in bytes; of a layer that is recomputed its input alone.
  int64_t most_kept() const {
    const int64_t input = num_rows() * config_.hidden_size * element_bytes_;
    const auto bytes_of = [&](const PlanOptions::Stage& stage) {
      int64_t bytes = 0;
      for (int64_t unit = std::max<int64_t>(stage.begin, 1); unit < std::min(stage.end, last_unit()); ++unit)
        bytes += is_recomputed(unit) ? input : layer_bytes(unit);
      return bytes;
    };
    if (degrees_.pipeline == 1) return bytes_of({0, plan_.num_units(), 0});
    std::vector<int64_t> bytes_of_stages;
    for (const auto& stage : plan_.options().stages) bytes_of_stages.push_back(bytes_of(stage));
    int64_t kept = 0, most = 0;
    for (const auto& action : schedule_.actions[static_cast<size_t>(plan_.place().pipeline)]) {
      const auto bytes = bytes_of_stages[static_cast<size_t>(action.stage)];
      if (action.kind == PipelineAction::Kind::kForward) kept += bytes;
      most = std::max(most, kept);
      // Where weight gradients come later, their inputs stay until then.
      const bool ends = action.kind == PipelineAction::Kind::kBackward || action.kind == PipelineAction::Kind::kWeights;
      if (ends) kept -= bytes;
    }
    return most;
  }

  int64_t layer_bytes(int64_t unit) const {
    return layer_activation_bytes(plan_, unit - 1, num_tokens_, element_bytes_);
  }

  MemoryNeed memory() const {
    MemoryNeed need;
    int64_t held = 0, all = 0, largest = 0, first = 0, last = 0, all_experts = 0, largest_experts = 0;
    for (size_t index = 0; index < units_.size(); ++index) {
      const auto& unit = units_[index];
      held += unit.padded / num_shards() + unit.experts_padded / num_expert_shards();
      all_experts += unit.experts_padded;
      largest_experts = std::max(largest_experts, unit.experts_padded);
      all += unit.padded;
      largest = std::max(largest, unit.padded);
      if (index == 0) first = unit.padded;
      if (static_cast<int64_t>(index) == last_unit()) last = unit.padded;
    }
    need.parameters = held * kMasterBytes;
    need.gradients = held * kMasterBytes;
    need.optimizer = 2 * held * kMasterBytes;
    const bool is_alone = num_shards() == 1;
    const bool never_frees = options_.sharding.reshard_after_forward == "never";
    const bool keeps_all = is_alone || never_frees;
    const bool is_master = is_alone && options_.sharding.parameter_dtype == at::kFloat;
    const int64_t head = plan_.is_tied() && has_unit(last_unit()) ? first : 0;
    if (!is_master) need.gathered = (keeps_all ? all : last + std::max(largest, head)) * element_bytes_;
    const bool sums = !is_alone || degrees_.replicate > 1 || degrees_.tensor > 1 || degrees_.pipeline > 1;
    if (sums) need.unreduced = (degrees_.pipeline > 1 ? all : std::max(largest, first)) * kMasterBytes;

    const bool has_own_experts = num_expert_shards() == 1;
    if (!has_own_experts || options_.sharding.parameter_dtype != at::kFloat)
      need.gathered += (has_own_experts || never_frees ? all_experts : largest_experts) * element_bytes_;
    if (!has_own_experts || degrees_.replicate > 1)
      need.unreduced += (degrees_.pipeline > 1 ? all_experts : largest_experts) * kMasterBytes;

    int64_t again = 0;  // the layer that is computed again
    for (int64_t unit = 1; unit < last_unit(); ++unit)
      if (has_unit(unit) && is_recomputed(unit)) again = std::max(again, layer_bytes(unit));
    need.activations = most_kept() + again;
    if (has_unit(last_unit())) {
      const int64_t chunk = std::min(num_targets_, kNumHeadRows);
      need.head = chunk * plan_.local_config().vocab_size * (4 + element_bytes_) +
                  2 * num_tokens_ * config_.hidden_size * element_bytes_;
    }
    return need;
  }

  const ModelConfig& config_;
  MeshDegrees degrees_;
  const ParallelOptions& options_;
  StepShape shape_;
  DeviceFigures device_;
  ParallelPlan plan_;
  int64_t element_bytes_;
  bool splits_tokens_ = false;
  int64_t num_tokens_ = 0, num_targets_ = 0, num_layers_ = 0;  // of this rank, a micro-batch
  std::vector<PlanOptions::Stage> stages_;
  std::vector<Unit> units_;
  PipelineSchedule schedule_;
  std::vector<Transfer> transfers_;
};

void check_estimated(const ModelConfig& config) {
  if (config.has(Mixer::kDeltaNet))
    throw UsageError(concat("the estimate knows layers with attention, not those of ", config.model_type));
}

}  // namespace

RankEstimate estimate_rank(const ModelConfig& config, const MeshDegrees& degrees, const MeshPlace& place,
                           const ParallelOptions& options, const StepShape& shape, const DeviceFigures& device) {
  check_estimated(config);
  return Counter(config, degrees, place, options, shape, device).estimate();
}

StepEstimate estimate_step(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options,
                           const StepShape& shape, const DeviceFigures& device) {
  check_estimated(config);
  StepEstimate result;
  for (int pipeline = 0; pipeline < degrees.pipeline; ++pipeline) {
    Counter counter(config, degrees, {.pipeline = pipeline}, options, shape, device);
    const auto rank = counter.estimate();
    const int num_neighbours = degrees.num_ranks() / degrees.pipeline;  // of tensor, context and data: they do the same
    result.model_flops += counter.model_flops_per_microbatch() * shape.num_microbatches * num_neighbours;
    if (pipeline == 0 || rank.memory.total() > result.fullest.memory.total()) result.fullest = rank;
    if (pipeline == 0 || rank.compute_s > result.slowest.compute_s) result.slowest = rank;
  }
  double stretch = 1;
  if (degrees.pipeline > 1) {
    const auto schedule = make_pipeline_schedule(options.pipeline.schedule, degrees.pipeline, shape.num_microbatches,
                                                 options.pipeline.stages_per_rank);
    const auto timeline = time_schedule(schedule);
    result.bubble = static_cast<double>(timeline.idle.front()) / static_cast<double>(timeline.length);
    stretch = 1 / (1 - result.bubble);
  }
  const auto held = static_cast<double>(result.fullest.memory.parameters) / kMasterBytes;
  result.optimizer_s = held * 28 / device.memory_bytes_per_s;  // reads four numbers, writes three
  const auto& slow = result.slowest;
  const double busy_s = (slow.compute_s + slow.other_transfer_s) * stretch;
  result.step_s = busy_s + slow.shard_transfer_s + result.optimizer_s;
  result.overlapped_step_s = busy_s + std::max(0.0, slow.shard_transfer_s - slow.compute_s) + result.optimizer_s;
  result.tokens = static_cast<double>(shape.tokens_per_microbatch) * shape.num_microbatches * degrees.num_data_ranks();
  return result;
}

}  // namespace troupe
