#include "parallel/parallel_model.h"

#include "base/error.h"
#include "parallel/tensor_parallel.h"

namespace troupe {

PlanOptions plan_options(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options) {
  PlanOptions plan{options.sequence_parallel, {}};
  if (degrees.pipeline > 1) plan.stages = pipeline_stages(options.pipeline, degrees.pipeline, config.num_hidden_layers);
  return plan;
}

void check_parallel(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options) {
  ParallelPlan(config, degrees, {}, plan_options(config, degrees, options));
}

ParallelModel::ParallelModel(const ModelConfig& config, const RankGroups& groups, const ParallelOptions& options)
    : plan_(config, groups.degrees(), groups.place(), plan_options(config, groups.degrees(), options)),
      groups_(groups),
      decoder_(plan_.local_config()) {
  if (groups_.tensor() != nullptr || groups_.context() != nullptr || groups_.experts() != nullptr) {
    exchange_ = std::make_shared<const RankExchange>(plan_, groups_, options.head_tail);
    decoder_.set_exchange(exchange_);
  }
  sharded_ = std::make_unique<FullyShardedDecoder>(decoder_, plan_, groups_, options.sharding);
  if (options.recompute != RecomputeMode::kNone)
    recompute_ = std::make_unique<RecomputeRunner>(*sharded_, options.recompute, config.num_hidden_layers);
  if (groups_.pipeline() != nullptr) {
    const auto activations = at::TensorOptions(options.sharding.parameter_dtype).device(options.sharding.device);
    pipeline_ = std::make_unique<Pipeline>(*groups_.pipeline(), options.pipeline, config.hidden_size, activations);
  }
}

int64_t ParallelModel::local_place(int64_t num_tokens, int64_t place) const {
  return exchange_ == nullptr || exchange_->has_whole_rows() ? place : exchange_->tokens(num_tokens).local_place(place);
}

Tensor ParallelModel::sum_over_context(const Tensor& x) const {
  return groups_.context() == nullptr ? x : leave_tensor_parallel(x, *groups_.context(), false);
}

Tensor ParallelModel::scores(const Tensor& hidden_ND, const Tensor& head_1D) const {
  const Tensor head_D = head_1D.to(at::kFloat).view({-1});
  if (groups_.tensor() == nullptr) return at::mv(hidden_ND.to(at::kFloat), head_D);
  // Each tensor rank reads its share of the features, so that gradients are parts of a sum here too.
  const auto size = head_D.numel(), rank = static_cast<int64_t>(groups_.tensor()->rank()),
             ranks = static_cast<int64_t>(groups_.tensor()->size());
  const auto begin = size * rank / ranks, count = size * (rank + 1) / ranks - begin;
  const Tensor part = at::mv(hidden_ND.narrow(1, begin, count).to(at::kFloat), head_D.narrow(0, begin, count));
  return leave_tensor_parallel(part, *groups_.tensor(), false);
}

UnitRunner& ParallelModel::runner(bool recomputes) {
  return recomputes && recompute_ ? static_cast<UnitRunner&>(*recompute_) : *sharded_;
}

PipelineWork ParallelModel::pipeline_work(const std::function<const ModelRow&(size_t row)>& rows, UnitRunner& runner) {
  PipelineWork work;
  work.forward = [this, &rows, &runner](int stage, int microbatch, const Tensor& x) {
    const auto& units = plan_.options().stages[static_cast<size_t>(stage)];
    const auto& row = rows(static_cast<size_t>(microbatch));
    return decoder_.forward_units(units.begin, units.end, x, row.tokens_T, row.layout, runner);
  };
  work.num_rows = [this, &rows](int microbatch) {
    const int64_t num_tokens = rows(static_cast<size_t>(microbatch)).layout.num_tokens;
    return exchange_ == nullptr ? num_tokens : exchange_->num_kept(num_tokens);
  };
  return work;
}

void ParallelModel::train(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows,
                          const std::function<Tensor(size_t row, const Tensor& hidden_TD)>& loss) {
  auto& runner = this->runner(true);
  if (pipeline_) {
    auto work = pipeline_work(rows, runner);
    work.finish = [&](int microbatch, const Tensor& hidden) { return loss(static_cast<size_t>(microbatch), hidden); };
    pipeline_->train(static_cast<int>(num_rows), work, *sharded_);
    return;
  }
  for (size_t index = 0; index < num_rows; ++index) {
    const auto& row = rows(index);
    loss(index, decoder_.forward(row.tokens_T, row.layout, runner)).backward();
  }
}

void ParallelModel::evaluate(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows,
                             const std::function<void(size_t row, const Tensor& hidden_TD)>& work) {
  const at::NoGradGuard no_grad;
  auto& runner = this->runner(false);
  if (pipeline_) {
    auto stages = pipeline_work(rows, runner);
    stages.finish = [&](int microbatch, const Tensor& hidden) {
      work(static_cast<size_t>(microbatch), hidden);
      return hidden;
    };
    pipeline_->evaluate(static_cast<int>(num_rows), stages);
    return;
  }
  for (size_t index = 0; index < num_rows; ++index) {
    const auto& row = rows(index);
    work(index, decoder_.forward(row.tokens_T, row.layout, runner));
  }
}

}  // namespace troupe
