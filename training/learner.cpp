#include "training/learner.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "training/flops.h"
#include "training/learner_implementation.h"

namespace troupe {

Learner::Implementation::Implementation(const ModelConfig& config, Collectives& collectives, Collectives& shards,
                                        Collectives* replicas, LearnerOptions options)
    : config_(config),
      collectives_(collectives),
      options_(std::move(options)),
      decoder_(config),
      model_(decoder_, shards, options_.sharding, replicas),
      kl_coefficient_(options_.algorithm.kl_coefficient, options_.algorithm.kl_target, options_.algorithm.kl_horizon) {
  if (options_.deterministic) {
    // Process-wide: torch takes kernels that add in a fixed order, and refuses what has none.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  check_schedule(options_.schedule);
  const auto check = [](bool condition, const char* key, auto value, const char* wanted) {
    if (!condition) throw UsageError(concat("training.", key, " = ", value, " ", wanted));
  };
  check(options_.max_norm >= 0, "max_norm", options_.max_norm, "must not be negative (0: not clipped)");
  check(options_.num_tokens_per_microbatch > 0, "num_tokens_per_microbatch_per_dp_rank",
        options_.num_tokens_per_microbatch, "must be above 0");
  require(options_.log_prob_vocab_size >= 0 && options_.log_prob_vocab_size <= config.vocab_size, "the tokenizer has ",
          options_.log_prob_vocab_size, " tokens, the model's vocabulary ", config.vocab_size);
  const auto mode = parse_recompute_mode(options_.activation_checkpoint);
  if (mode != RecomputeMode::kNone) {
    recompute_ = std::make_unique<RecomputeRunner>(model_, mode, config.num_hidden_layers);
  }
  if (options_.peak_flops < 0)
    options_.peak_flops =
        measure_flops(options_.sharding.parameter_dtype, options_.sharding.device) * collectives_.size();
  optimizer_ = make_optimizer(options_.optimizer, model_.shards(), model_.pieces(), decoder_.specs());
}

Learner::Implementation::Update Learner::Implementation::update(int64_t num_rows, MetricSums& sums,
                                                                const std::function<void(int64_t row)>& run_row) {
  Update result;
  result.lr = scheduled_learning_rate(options_.schedule, options_.optimizer.lr, step_);
  const Stopwatch forward_backward;
  model_.zero_gradients();
  for (int64_t row = 0; row < num_rows; ++row) run_row(row);
  model_.finish_backward();
  sums.join(collectives_, options_.sharding.device, "metrics");
  result.grad_norm = model_.gradient_norm();
  result.forward_backward_s = forward_backward.seconds();

  const Stopwatch optimizer;
  const double loss = sums.sum("loss");
  result.is_skipped = !std::isfinite(loss) || !std::isfinite(result.grad_norm);
  if (result.is_skipped) {
    const auto what =
        concat("optimizer step ", step_ + 1, " skipped: loss ", loss, ", gradient norm ", result.grad_norm);
    if (collectives_.rank() == 0) log::warning(what);
    ++num_skipped_in_a_row_;
    require(num_skipped_in_a_row_ < options_.skip_nonfinite_steps, what, "; ", num_skipped_in_a_row_,
            " in a row (training.skip_nonfinite_steps)");
    return result;
  }
  num_skipped_in_a_row_ = 0;
  const bool is_clipped = options_.max_norm > 0 && result.grad_norm > options_.max_norm;
  optimizer_->update(result.lr, is_clipped ? options_.max_norm / result.grad_norm : 1, step_ + 1);
  model_.parameters_changed();
  ++step_;
  result.optimizer_s = optimizer.seconds();
  return result;
}

Tensor Learner::Implementation::predicting_hidden(const RowTensors& row, const PackedLayout& layout) {
  const auto hidden_TD =
      recompute_ ? decoder_.forward(row.tokens_T, layout, *recompute_) : model_.forward(row.tokens_T, layout);
  return hidden_TD.index_select(0, row.predictors_N);
}

Tensor Learner::Implementation::scores(const Tensor& hidden_ND) {
  require(config_.num_labels == 1, "scores need a model with one label, not a language model");
  return at::mv(hidden_ND.to(at::kFloat), model_.head_weight().to(at::kFloat).view({-1}));
}

RowTensors Learner::Implementation::to_tensors(const PackedRow& row) const {
  const auto device = options_.sharding.device;
  return {at::tensor(row.tokens, at::kLong).to(device), at::tensor(row.predictors, at::kLong).to(device),
          at::tensor(row.targets, at::kLong).to(device)};
}

LogProbOptions Learner::Implementation::log_prob_options(double temperature) const {
  LogProbOptions result;
  result.temperature = temperature;
  result.vocab_size = options_.log_prob_vocab_size;
  return result;
}

void Learner::Implementation::count_row(MetricSums& sums, const PackedLayout& layout, int64_t num_predicted,
                                        bool is_filler) const {
  sums.add("row_tokens", static_cast<double>(layout.num_tokens));
  sums.add("filler_tokens", is_filler ? static_cast<double>(layout.num_tokens) : 0);
  sums.add("flops", is_filler ? 0 : training_flops(config_, layout, num_predicted));
}

void Learner::Implementation::report(Metrics& metrics, const MetricSums& sums, const Update& update) const {
  metrics["lr"] = update.lr;
  metrics["grad_norm"] = update.grad_norm;
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
    : implementation_(std::make_unique<Implementation>(config, groups.world(), groups.shards(), groups.replicas(),
                                                       std::move(options))) {}
Learner::Learner(const ModelConfig& config, Collectives& collectives, LearnerOptions options)
    : implementation_(std::make_unique<Implementation>(config, collectives, collectives, nullptr, std::move(options))) {
}
Learner::~Learner() = default;

void Learner::load(const ReadTensor& read) { implementation_->model_.load(read); }
void Learner::load_reference(const ModelConfig& config, const ReadTensor& read) {
  auto& self = *implementation_;
  require(config.vocab_size == self.config_.vocab_size, "the reference has a vocabulary of ", config.vocab_size,
          ", the model one of ", self.config_.vocab_size);
  self.reference_decoder_ = std::make_unique<Decoder>(config);
  self.reference_ =
      std::make_unique<FullyShardedDecoder>(*self.reference_decoder_, self.collectives_, self.options_.sharding);
  self.reference_->load(read);
}
int64_t Learner::step() const { return implementation_->step_; }
double Learner::learning_rate() const {
  const auto& options = implementation_->options_;
  return scheduled_learning_rate(options.schedule, options.optimizer.lr, implementation_->step_);
}
double Learner::kl_coefficient() const { return implementation_->kl_coefficient_.value(); }
void Learner::set_kl_coefficient(double value) { implementation_->kl_coefficient_.set(value); }
TensorMap Learner::gather_weights(at::ScalarType dtype) { return implementation_->model_.gather_weights(dtype); }
TensorMap Learner::borrow_weights(at::ScalarType dtype) { return implementation_->model_.borrow_weights(dtype); }
FullyShardedDecoder& Learner::model() { return implementation_->model_; }
std::map<std::string, std::vector<Tensor>> Learner::optimizer_state() { return implementation_->optimizer_->state(); }
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
