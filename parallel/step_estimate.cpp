#include "parallel/step_estimate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
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
    context_transfers();
    pipeline_transfers();
    const auto groups = own_groups();
    for (const auto& transfer : transfers_) {
      const double seconds = transfer_seconds(groups, transfer);
      const bool is_of_shards = transfer.group == "shards" || transfer.group == "replicas";
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
    bool is_tied = false;
  };

  int num_shards() const { return degrees_.shard * degrees_.context; }
  int64_t last_unit() const { return plan_.num_units() - 1; }
  bool has_unit(int64_t unit) const {
    return std::any_of(stages_.begin(), stages_.end(),
                       [&](const auto& stage) { return stage.begin <= unit && unit < stage.end; });
  }
  int64_t layers_of(const PlanOptions::Stage& stage) const {
    return std::min(stage.end, last_unit()) - std::max<int64_t>(stage.begin, 1);
  }
  int64_t num_recomputed_layers() const {
    int64_t count = 0;
    for (int64_t unit = 1; unit < last_unit(); ++unit)
      count += has_unit(unit) && recomputes(options_.recompute, unit, config_.num_hidden_layers) ? 1 : 0;
    return count;
  }

  Unit count_unit(int64_t index) const {
    Unit unit;
    unit.is_held = plan_.holds(index);
    if (!unit.is_held) return unit;
    for (const auto& spec : plan_.whole_specs()) {
      if (spec.unit != index) continue;
      const auto part = plan_.part(spec);
      unit.numel += c10::multiply_integers(part.box.size);
      if (part.sums_over_tensor && degrees_.tensor > 1) unit.summed_numel += c10::multiply_integers(spec.shape);
      unit.is_tied = unit.is_tied || part.sums_over_tied;
    }
    unit.padded = (unit.numel + num_shards() - 1) / num_shards() * num_shards();
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
        add_one("shards", "reduce_scatter", "gradient", reductions, unit.padded * reduce_bytes);
      }
      if (degrees_.replicate > 1)
        add_one("replicas", "all_reduce", "gradient", reductions, unit.padded / num_shards() * reduce_bytes);
      if (unit.summed_numel > 0)
        add_one("tensor", "all_reduce", "over tensor ranks", reductions, unit.summed_numel * kMasterBytes);
      if (unit.is_tied) add_one("tied", "all_reduce", "tied stages", 1, unit.padded * kMasterBytes);
    }
  }

  void tensor_transfers() {
    if (degrees_.tensor == 1) return;
    const int64_t m = shape_.num_microbatches, layers = num_layers_, again = num_recomputed_layers();
    const int64_t bytes = num_tokens_ * config_.hidden_size * element_bytes_;
    const int64_t first = has_unit(0) ? 1 : 0, last = has_unit(last_unit()) ? 1 : 0;
    if (splits_tokens_) {
      // In: gathers forward, scatters backward. Out: the reverse. Two of each a layer.
      add("tensor", "all_gather", "tokens of the tensor ranks", m * (4 * layers + 2 * again + first + last), bytes);
      add("tensor", "reduce_scatter", "sums of the tensor ranks", m * (4 * layers + 2 * again + first + last), bytes);
    } else {
      add("tensor", "all_reduce", "sums of the tensor ranks", m * (4 * layers + 2 * again + first + last), bytes);
    }
    if (last != 0) {
      const int64_t chunks = (num_targets_ + kNumHeadRows - 1) / kNumHeadRows;
      const int64_t wide = std::max<int64_t>(4, element_bytes_);
      transfers_.push_back(
          {"tensor", "all_gather", "softmax", m * chunks, m * degrees_.tensor * 4 * num_targets_ * wide});
    }
  }

  void context_transfers() {
    if (degrees_.context == 1) return;
    const int64_t ranks = degrees_.context, m = shape_.num_microbatches;
    const int64_t numel = num_tokens_ * 2 * plan_.local_config().num_key_value_heads * config_.head_dim;
    const int64_t passes = m * (2 * num_layers_ + num_recomputed_layers());
    add("context", "send", "attention keys and values", passes * (ranks - 1), numel * element_bytes_);
    add("context", "send", "attention gradients", m * num_layers_ * ranks,
        numel * std::max<int64_t>(4, element_bytes_));
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
    const int64_t rows = splits_tokens_ ? num_tokens_ / degrees_.tensor : num_tokens_;
    add("pipeline", "send", "micro-batch", calls * shape_.num_microbatches,
        rows * config_.hidden_size * element_bytes_);
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

  /// Products of one micro-batch's forward on this rank (training/flops.h counts the same over a whole row).
  double forward_flops() const {
    double parameters = 0;
    for (const auto& spec : plan_.whole_specs()) {
      if (spec.shape.size() < 2 || spec.unit == 0 || spec.unit == last_unit() || !has_unit(spec.unit)) continue;
      parameters += static_cast<double>(c10::multiply_integers(plan_.part(spec).box.size));
    }
    const double tokens = static_cast<double>(shape_.tokens_per_microbatch) / degrees_.context;
    const double pairs =
        tokens * static_cast<double>(std::min(shape_.sequence_length, shape_.tokens_per_microbatch) + 1) / 2;
    const auto& local = plan_.local_config();
    double flops = 2 * parameters * tokens +
                   4.0 * static_cast<double>(num_layers_ * local.num_attention_heads * local.head_dim) * pairs;
    if (has_unit(last_unit()))
      flops += 2.0 * static_cast<double>(local.vocab_size) * static_cast<double>(config_.hidden_size) * tokens;
    return flops;
  }

  double executed_flops() const {
    const double again =
        num_layers_ == 0 ? 0 : static_cast<double>(num_recomputed_layers()) / static_cast<double>(num_layers_);
    return forward_flops() * (3 + again) * shape_.num_microbatches;
  }

  /// Most micro-batches, counted in layers, whose activations are kept at one time.
  int64_t most_layers_kept() const {
    if (degrees_.pipeline == 1) return num_layers_;
    int64_t kept = 0, most = 0;
    for (const auto& action : schedule_.actions[static_cast<size_t>(plan_.place().pipeline)]) {
      const auto layers = layers_of(plan_.options().stages[static_cast<size_t>(action.stage)]);
      if (action.kind == PipelineAction::Kind::kForward) kept += layers;
      most = std::max(most, kept);
      // Where weight gradients come later, their inputs stay until then.
      const bool ends = action.kind == PipelineAction::Kind::kBackward || action.kind == PipelineAction::Kind::kWeights;
      if (ends) kept -= layers;
    }
    return most;
  }

  MemoryNeed memory() const {
    MemoryNeed need;
    int64_t held = 0, all = 0, largest = 0, first = 0, last = 0;
    for (size_t index = 0; index < units_.size(); ++index) {
      const auto& unit = units_[index];
      held += unit.padded / num_shards();
      all += unit.padded;
      largest = std::max(largest, unit.padded);
      if (index == 0) first = unit.padded;
      if (static_cast<int64_t>(index) == last_unit()) last = unit.padded;
    }
    need.parameters = held * kMasterBytes;
    need.gradients = held * kMasterBytes;
    need.optimizer = 2 * held * kMasterBytes;
    const bool is_alone = num_shards() == 1;
    const bool keeps_all = is_alone || options_.sharding.reshard_after_forward == "never";
    const bool is_master = is_alone && options_.sharding.parameter_dtype == at::kFloat;
    const int64_t head = plan_.is_tied() && has_unit(last_unit()) ? first : 0;
    if (!is_master) need.gathered = (keeps_all ? all : last + std::max(largest, head)) * element_bytes_;
    const bool sums = !is_alone || degrees_.replicate > 1 || degrees_.tensor > 1 || degrees_.pipeline > 1;
    if (sums) need.unreduced = (degrees_.pipeline > 1 ? all : std::max(largest, first)) * kMasterBytes;

    const int64_t layer = layer_activation_bytes(plan_, num_tokens_, element_bytes_);
    const int64_t rows = splits_tokens_ ? num_tokens_ / degrees_.tensor : num_tokens_;
    const int64_t input = rows * config_.hidden_size * element_bytes_;
    const int64_t kept = most_layers_kept();
    const int64_t thin = num_layers_ == 0 ? 0 : kept * num_recomputed_layers() / num_layers_;
    need.activations = (kept - thin) * layer + thin * input + (thin > 0 ? layer : 0);
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

}  // namespace

int64_t layer_activation_bytes(const ParallelPlan& plan, int64_t num_tokens, int64_t element_bytes) {
  const auto& local = plan.local_config();
  const int64_t width = local.hidden_size, heads = local.num_attention_heads * local.head_dim;
  const int64_t projected = heads + 2 * local.num_key_value_heads * local.head_dim;
  const bool splits_tokens = plan.degrees().tensor > 1 && plan.options().sequence_parallel;
  const int64_t rows = splits_tokens ? num_tokens / plan.degrees().tensor : num_tokens;
  // Between the blocks: what both norms read. Inside: their outputs, q, k and v, attended values, gate and up.
  const int64_t between = 2 * rows * width;
  const int64_t inside =
      num_tokens * (2 * width + projected * (local.query_key_norm ? 2 : 1) + heads + 2 * local.intermediate_size);
  const int64_t log_sums = num_tokens * local.num_attention_heads * std::max<int64_t>(4, element_bytes);
  const int64_t norm_scales = 2 * rows * std::max<int64_t>(4, element_bytes);
  return (between + inside) * element_bytes + log_sums + norm_scales;
}

namespace {

void check_estimated(const ModelConfig& config) {
  const bool is_dense = !config.has_experts() && !config.has(Mixer::kLatentAttention) && !config.has(Mixer::kDeltaNet);
  if (!is_dense) {
    throw UsageError(concat("the estimate knows dense layers with attention alone, not those of ", config.model_type));
  }
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
