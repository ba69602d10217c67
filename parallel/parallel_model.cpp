#include "parallel/parallel_model.h"

#include "base/error.h"
#include "parallel/tensor_parallel.h"

namespace troupe {

PlanOptions plan_options(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options) {
  PlanOptions plan{options.sequence_parallel, {}};
  if (degrees.pipeline > 1) plan.stages = pipeline_stages(options.pipeline, degrees.pipeline, config.num_hidden_layers);
  return plan;
}

namespace {

void check_balance(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options) {
  if (options.router_aux_loss_coef == 0) return;
  const auto refuse = [&](const auto&... why) {
    throw UsageError(concat("training.router_aux_loss_coef = ", options.router_aux_loss_coef, ": ", why...));
  };
  if (options.router_aux_loss_coef < 0) refuse("must not be negative");
  if (!config.has_experts()) refuse(config.model_type, " has no experts");
  if (config.moe.score != RouterScore::kSoftmax && config.moe.score != RouterScore::kSoftmaxOfChosen)
    refuse("is for routers that choose by softmax, which those of ", config.model_type, " do not");
  if (degrees.pipeline > 1)
    refuse("joins all layers of a row, which parallelism.pipeline_parallel_degree = ", degrees.pipeline,
           " takes apart");
}

}  // namespace

void check_parallel(const ModelConfig& config, const MeshDegrees& degrees, const ParallelOptions& options) {
  check_balance(config, degrees, options);
  ParallelPlan(config, degrees, {}, plan_options(config, degrees, options));
}

ParallelModel::ParallelModel(const ModelConfig& config, const RankGroups& groups, const ParallelOptions& options)
    : plan_(config, groups.degrees(), groups.place(), plan_options(config, groups.degrees(), options)),
      groups_(groups),
      decoder_(plan_.local_config()) {
  check_balance(config, groups.degrees(), options);
  if (config.has_experts()) load_ = std::make_shared<ExpertLoad>(config);
  if (options.router_aux_loss_coef > 0) balance_ = std::make_shared<RouterBalance>(config, groups_);
  router_aux_loss_coef_ = options.router_aux_loss_coef;
  if (groups_.tensor() != nullptr || groups_.context() != nullptr || load_ != nullptr) {
    exchange_ = std::make_shared<const RankExchange>(plan_, groups_, options.head_tail, load_, balance_);
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
    count_experts(row, 0);
    return decoder_.forward_units(units.begin, units.end, x, row.tokens_T, row.layout, runner);
  };
  work.num_rows = [this, &rows](int microbatch) {
    const int64_t num_tokens = rows(static_cast<size_t>(microbatch)).layout.num_tokens;
    return exchange_ == nullptr ? num_tokens : exchange_->num_kept(num_tokens);
  };
  return work;
}

void ParallelModel::count_experts(const ModelRow& row, double balance_weight) const {
  if (load_ == nullptr) return;
  const int64_t num_tokens = row.layout.num_tokens;
  const auto is_counted_T =
      row.counts ? exchange_->are_tokens(num_tokens) : at::zeros({exchange_->num_kept(num_tokens)}, at::kBool);
  load_->set_counted(is_counted_T);
  if (balance_ != nullptr) balance_->begin_row(balance_weight, is_counted_T);
}

/// The balancing loss's weight a token, so that rows weigh as their tokens do; every rank calls.
double ParallelModel::balance_per_token(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows) const {
  if (balance_ == nullptr) return 0;
  double num_tokens = 0;
  for (size_t row = 0; row < num_rows; ++row)
    if (rows(row).counts && speaks_for_row()) num_tokens += static_cast<double>(rows(row).layout.num_tokens);
  auto total = at::full({1}, num_tokens, at::kDouble);
  groups_.losses().all_reduce(total, "tokens of the step");
  return router_aux_loss_coef_ / std::max(1.0, total.item<double>());
}

Tensor ParallelModel::expert_load() const { return load_ == nullptr ? Tensor() : load_->total(groups_); }

void ParallelModel::balance_experts(const Tensor& load_LE, double rate) {
  const at::NoGradGuard no_grad;
  const Tensor step_LE = at::sign(load_LE.mean(1, true) - load_LE) * rate;
  std::map<std::string, int64_t> layers;  // of the biases: the only parameters that are not trained
  for (const auto& spec : plan_.whole_specs())
    if (!spec.is_trained) layers[spec.name] = spec.unit - 1;
  for (const auto& piece : sharded_->pieces()) {
    const auto found = layers.find(piece.name);
    if (found == layers.end()) continue;
    auto& shard = sharded_->shards()[static_cast<size_t>(piece.unit)].parameter;
    const int64_t count = piece.flat_end - piece.flat_begin;
    shard.narrow(0, piece.shard_begin, count).add_(step_LE[found->second].narrow(0, piece.flat_begin, count).to(shard));
  }
}

void ParallelModel::train(size_t num_rows, const std::function<const ModelRow&(size_t row)>& rows,
                          const std::function<Tensor(size_t row, const Tensor& hidden_TD)>& loss) {
  auto& runner = this->runner(true);
  if (load_ != nullptr) load_->start();
  if (balance_ != nullptr) balance_->start();
  if (pipeline_) {
    auto work = pipeline_work(rows, runner);
    work.finish = [&](int microbatch, const Tensor& hidden) { return loss(static_cast<size_t>(microbatch), hidden); };
    pipeline_->train(static_cast<int>(num_rows), work, *sharded_);
    if (load_ != nullptr) load_->stop();
    return;
  }
  const double per_token = balance_per_token(num_rows, rows);
  for (size_t index = 0; index < num_rows; ++index) {
    const auto& row = rows(index);
    count_experts(row, per_token * static_cast<double>(row.layout.num_tokens));
    const auto hidden_TD = decoder_.forward(row.tokens_T, row.layout, runner);
    if (balance_ != nullptr) balance_->end_row();
    loss(index, hidden_TD).backward();
  }
  if (load_ != nullptr) load_->stop();
  if (balance_ != nullptr) balance_->stop();
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
