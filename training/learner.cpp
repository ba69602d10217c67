#include "training/learner.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "training/flops.h"
#include "training/learner_implementation.h"

namespace troupe {

namespace {

ParallelOptions with_recompute(ParallelOptions options, const std::string& mode) {
  options.recompute = parse_recompute_mode(mode);
  return options;
}

}  // namespace

Learner::Implementation::Implementation(const ModelConfig& config, const RankGroups& groups, LearnerOptions options)
    : config_(config),
      options_(std::move(options)),
      groups_(groups),
      model_(config, groups, with_recompute(options_.parallel, options_.activation_checkpoint)),
      kl_coefficient_(options_.algorithm.kl_coefficient, options_.algorithm.kl_target, options_.algorithm.kl_horizon) {
  if (options_.deterministic) {
    // Process-wide: torch takes kernels that add in a fixed order, and refuses what has none.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  check_schedule(options_.schedule);
  const auto check = [](bool condition, const char* key, auto value, const std::string& wanted) {
    if (!condition) throw UsageError(concat("training.", key, " = ", value, " ", wanted));
  };
  check(options_.max_norm >= 0, "max_norm", options_.max_norm, "must not be negative (0: not clipped)");
  check(options_.expert_bias_rate >= 0, "expert_bias_rate", options_.expert_bias_rate, "must not be negative");
  check(options_.expert_bias_rate == 0 || options_.is_frozen || config.moe.choice_bias, "expert_bias_rate",
        options_.expert_bias_rate,
        concat("needs routers with a bias that only chooses, which ", config.model_type, " does not have"));
  check(options_.num_tokens_per_microbatch > 0, "num_tokens_per_microbatch_per_dp_rank",
        options_.num_tokens_per_microbatch, "must be above 0");
  require(options_.log_prob_vocab_size >= 0 && options_.log_prob_vocab_size <= config.vocab_size, "the tokenizer has ",
          options_.log_prob_vocab_size, " tokens, the model's vocabulary ", config.vocab_size);
  if (options_.peak_flops < 0) {
    const auto& sharding = options_.parallel.sharding;
    options_.peak_flops = measure_flops(sharding.parameter_dtype, sharding.device) * groups_.world().size();
  }
  auto& sharded = model_.sharded();
  if (options_.is_frozen) return;
  optimizer_ = make_optimizer(options_.optimizer, sharded.shards(), sharded.pieces(), parameter_specs(config));
}

Learner::Implementation::Update Learner::Implementation::update(const std::vector<LearnerRow>& rows, MetricSums& sums,
                                                                const RowLoss& loss_of) {
  require(optimizer_ != nullptr, "a frozen model is not trained");
  Update result;
  result.lr = scheduled_learning_rate(options_.schedule, options_.optimizer.lr, step_);
  const Stopwatch forward_backward;
  auto& sharded = model_.sharded();
  sharded.zero_gradients();
  const auto fillers = make_fillers(rows);
  const auto row_at = [&](size_t row) -> const LearnerRow& {
    return row < rows.size() ? rows[row] : fillers[row - rows.size()];
  };
  model_.train(
      rows.size() + fillers.size(), [&](size_t row) -> const ModelRow& { return row_at(row).model; },
      [&](size_t row, const Tensor& hidden_TD) {
        return loss_of(row_at(row), hidden_TD.index_select(0, row_at(row).predictors_N));
      });
  sharded.finish_backward();
  const double coefficient = options_.parallel.router_aux_loss_coef;
  if (coefficient > 0) {
    sums.add("loss", model_.balance_loss());
    sums.add("balance", model_.balance_loss());
  }
  join(sums);
  if (coefficient > 0) result.balance_loss = sums.sum("balance") / coefficient;
  result.grad_norm = sharded.gradient_norm();
  const auto load_LE = model_.expert_load();
  if (load_LE.defined()) result.load_violation = load_violation(load_LE);
  result.forward_backward_s = forward_backward.seconds();

  const Stopwatch optimizer;
  const double loss = sums.sum("loss");
  result.is_skipped = !std::isfinite(loss) || !std::isfinite(result.grad_norm);
  if (result.is_skipped) {
    const auto what =
        concat("optimizer step ", step_ + 1, " skipped: loss ", loss, ", gradient norm ", result.grad_norm);
    if (groups_.world().rank() == 0) log::warning(what);
    ++num_skipped_in_a_row_;
    require(num_skipped_in_a_row_ < options_.skip_nonfinite_steps, what, "; ", num_skipped_in_a_row_,
            " in a row (training.skip_nonfinite_steps)");
    return result;
  }
  num_skipped_in_a_row_ = 0;
  const bool is_clipped = options_.max_norm > 0 && result.grad_norm > options_.max_norm;
  optimizer_->update(result.lr, is_clipped ? options_.max_norm / result.grad_norm : 1, step_ + 1);
  if (options_.expert_bias_rate > 0) model_.balance_experts(load_LE, options_.expert_bias_rate);
  sharded.parameters_changed();
  ++step_;
  result.optimizer_s = optimizer.seconds();
  return result;
}

void Learner::Implementation::evaluate(
    const std::vector<LearnerRow>& rows, MetricSums& sums,
    const std::function<void(const LearnerRow& row, const Tensor& hidden_ND)>& work) {
  model_.evaluate(
      rows.size(), [&](size_t row) -> const ModelRow& { return rows[row].model; },
      [&](size_t row, const Tensor& hidden_TD) { work(rows[row], hidden_TD.index_select(0, rows[row].predictors_N)); });
  join(sums);
}

void Learner::Implementation::join(MetricSums& sums) {
  const auto device = options_.parallel.sharding.device;
  if (model_.has_last_stage()) sums.join(groups_.losses(), device, "metrics");
  if (groups_.pipeline() == nullptr) return;
  const auto& plan = model_.plan();
  sums.share(*groups_.pipeline(), plan.owner(plan.num_units() - 1), device, "metrics of the last stage");
}

LearnerRow Learner::Implementation::make_row(PackedRow packed) const {
  const auto device = options_.parallel.sharding.device;
  LearnerRow row;
  row.own = packed;
  const auto keep = [&](auto& values) {
    for (size_t n = 0; n < row.kept.size(); ++n)
      if (!values.empty()) values[n] = values[static_cast<size_t>(row.kept[n])];
    if (!values.empty()) values.resize(row.kept.size());
  };
  for (size_t n = 0; n < packed.predictors.size(); ++n) {
    auto& predictor = row.own.predictors[n];
    predictor = model_.local_place(packed.layout.num_tokens, predictor);
    if (predictor >= 0) row.kept.push_back(static_cast<int64_t>(n));
  }
  keep(row.own.predictors);
  keep(row.own.targets);
  keep(row.own.samples);
  keep(row.own.token_indices);
  row.model = {at::tensor(packed.tokens, at::kLong).to(device), packed.layout, !packed.is_filler};
  row.predictors_N = at::tensor(row.own.predictors, at::kLong).to(device);
  row.targets_N = at::tensor(row.own.targets, at::kLong).to(device);
  row.whole = std::move(packed);
  return row;
}

std::vector<LearnerRow> Learner::Implementation::make_rows(const std::vector<PackedRow>& rows) const {
  std::vector<LearnerRow> made;
  for (const auto& row : rows) made.push_back(make_row(row));
  return made;
}

std::vector<LearnerRow> Learner::Implementation::make_fillers(const std::vector<LearnerRow>& rows) const {
  std::vector<LearnerRow> fillers;
  const auto multiple = static_cast<size_t>(model_.row_multiple());
  if (rows.size() % multiple == 0) return fillers;
  auto shortest = std::min_element(rows.begin(), rows.end(), [](const LearnerRow& a, const LearnerRow& b) {
                    return a.whole.layout.num_tokens < b.whole.layout.num_tokens;
                  })->whole;
  shortest.is_filler = true;
  while ((rows.size() + fillers.size()) % multiple != 0) fillers.push_back(make_row(shortest));
  return fillers;
}

Tensor Learner::Implementation::whole_row(const LearnerRow& row, const Tensor& values_N) const {
  if (groups_.context() == nullptr) return values_N;
  const auto places = at::tensor(row.kept, at::kLong).to(values_N.device());
  const auto whole = values_N.new_zeros({static_cast<int64_t>(row.whole.targets.size())});
  return model_.sum_over_context(whole.index_add(0, places, values_N));
}

Tensor Learner::Implementation::scores(const Tensor& hidden_ND) {
  require(config_.num_labels == 1, "scores need a model with one label, not a language model");
  return model_.scores(hidden_ND, head_weight());
}

LogProbOptions Learner::Implementation::log_prob_options(double temperature) const {
  LogProbOptions result;
  result.temperature = temperature;
  result.vocab_size = options_.log_prob_vocab_size;
  result.logit_softcap = config_.logit_softcap;
  if (groups_.tensor() == nullptr) return result;
  result.split = {groups_.tensor(), model_.plan().vocabulary_begin()};
  if (result.vocab_size == 0) result.vocab_size = config_.vocab_size;
  return result;
}

void Learner::Implementation::count_row(MetricSums& sums, const PackedRow& row) const {
  const double share = model_.speaks_for_row() ? 1 : 0;
  const auto num_tokens = share * static_cast<double>(row.layout.num_tokens);
  sums.add("row_tokens", num_tokens);
  sums.add("filler_tokens", row.is_filler ? num_tokens : 0);
  sums.add("flops",
           row.is_filler ? 0 : share * training_flops(config_, row.layout, static_cast<int64_t>(row.targets.size())));
}

void Learner::Implementation::report(Metrics& metrics, const MetricSums& sums, const Update& update) const {
  metrics["lr"] = update.lr;
  metrics["grad_norm"] = update.grad_norm;
  if (update.balance_loss >= 0) metrics["moe/balance_loss"] = update.balance_loss;
  if (update.load_violation >= 0) metrics["moe/max_violation"] = update.load_violation;
  metrics["train_batch/padding_frac"] = sums.ratio("filler_tokens", "row_tokens");
  metrics["train_batch/num_row_tokens"] = sums.sum("row_tokens") - sums.sum("filler_tokens");
  metrics["time/forward_backward_s"] = update.forward_backward_s;
  metrics["time/optimizer_s"] = update.optimizer_s;
  const double seconds = update.forward_backward_s + update.optimizer_s;
  if (seconds <= 0) return;
  metrics["throughput(tps)"] = metrics["train_batch/num_row_tokens"] / seconds;
  metrics["tflops"] = sums.sum("flops") / seconds / 1e12;
  if (options_.peak_flops > 0) metrics["mfu(%)"] = 100 * sums.sum("flops") / seconds / options_.peak_flops;
}

Learner::Learner(const ModelConfig& config, const RankGroups& groups, LearnerOptions options)
    : implementation_(std::make_unique<Implementation>(config, groups, std::move(options))) {}
Learner::Learner(const ModelConfig& config, Collectives& collectives, LearnerOptions options)
    : Learner(config, RankGroups(collectives), std::move(options)) {}
Learner::~Learner() = default;

void Learner::load(const ReadTensor& read) { implementation_->model_.sharded().load(read); }
int64_t Learner::step() const { return implementation_->step_; }
double Learner::learning_rate() const {
  const auto& options = implementation_->options_;
  return scheduled_learning_rate(options.schedule, options.optimizer.lr, implementation_->step_);
}
double Learner::kl_coefficient() const { return implementation_->kl_coefficient_.value(); }
void Learner::set_kl_coefficient(double value) { implementation_->kl_coefficient_.set(value); }
TensorMap Learner::gather_weights(at::ScalarType dtype) {
  return implementation_->model_.sharded().gather_weights(dtype);
}
TensorMap Learner::borrow_weights(at::ScalarType dtype) {
  return implementation_->model_.sharded().borrow_weights(dtype);
}
FullyShardedDecoder& Learner::model() { return implementation_->model_.sharded(); }
const Pipeline* Learner::pipeline() const { return implementation_->model_.pipeline(); }
std::map<std::string, std::vector<Tensor>> Learner::optimizer_state() {
  require(implementation_->optimizer_ != nullptr, "a frozen model has no optimizer state");
  return implementation_->optimizer_->state();
}
nlohmann::json Learner::state() const {
  const auto& self = *implementation_;
  return {{"step", self.step_},
          {"kl_coefficient", self.kl_coefficient_.value()},
          {"num_skipped_in_a_row", self.num_skipped_in_a_row_}};
}
void Learner::set_state(const nlohmann::json& state) try {
  auto& self = *implementation_;
  self.step_ = state.at("step");
  self.num_skipped_in_a_row_ = state.at("num_skipped_in_a_row");
  // A fixed coefficient is the configuration's, also where that has changed since.
  if (self.options_.algorithm.kl_target > 0) self.kl_coefficient_.set(state.at("kl_coefficient"));
} catch (const nlohmann::json::exception& error) {
  fail("state of the learner: ", error.what());
}
const LearnerOptions& Learner::options() const { return implementation_->options_; }

}  // namespace troupe
