// The language-model step: cross entropy over packed rows, each rank with rows of its own.
#include <algorithm>
#include <cmath>

#include "training/join_rows.h"
#include "training/learner_implementation.h"

namespace troupe {
namespace {

/// How many micro-batches each rank runs (the most that any has) and how many targets there are on all.
struct Agreement {
  int64_t num_microbatches = 0;
  int64_t num_targets = 0;
};

/// Rows that context neighbours share count once: `counts_rows` on one of them.
Agreement agree(Collectives& collectives, bool counts_rows, at::Device device,
                const std::vector<LanguageModelBatch>& rows) {
  MetricSums counts;
  counts.add("targets", 0);
  counts.raise("rows", static_cast<double>(rows.size()));
  for (const auto& row : rows) counts.add("targets", counts_rows ? static_cast<double>(row.num_targets()) : 0);
  counts.join(collectives, device, "count of rows");
  return {static_cast<int64_t>(counts.maximum("rows")), static_cast<int64_t>(counts.sum("targets"))};
}

/// As many rows a micro-batch as fit into it whatever they hold, so that every step of a run has as many micro-batches.
std::vector<LanguageModelBatch> to_microbatches(const std::vector<LanguageModelBatch>& rows,
                                                const LearnerOptions& options) {
  return join_rows(rows, std::max<int64_t>(1, options.num_tokens_per_microbatch / options.max_context_length));
}

/// Stands in where another rank has one row more: one token whose loss has weight 0.
LanguageModelBatch filler_row() {
  LanguageModelBatch row;
  row.tokens = row.targets = {0};
  row.layout = {{{0, 1, -1}}, 1};
  return row;
}

PackedRow to_packed(const LanguageModelBatch& batch, bool is_filler) {
  PackedRow row;
  row.tokens = batch.tokens;
  row.layout = batch.layout;
  row.is_filler = is_filler;
  for (size_t t = 0; t < batch.targets.size(); ++t) {
    if (batch.targets[t] < 0) continue;
    row.predictors.push_back(static_cast<int64_t>(t));
    row.targets.push_back(batch.targets[t]);
  }
  return row;
}

std::vector<PackedRow> rows_or_fillers(const std::vector<LanguageModelBatch>& rows, int64_t num_rows) {
  std::vector<PackedRow> packed;
  for (int64_t index = 0; index < num_rows; ++index) {
    const bool is_filler = index >= static_cast<int64_t>(rows.size());
    // A row without a target still takes part in the collectives, with weight 0.
    const bool has_targets = !is_filler && rows[static_cast<size_t>(index)].num_targets() > 0;
    packed.push_back(has_targets ? to_packed(rows[static_cast<size_t>(index)], false) : to_packed(filler_row(), true));
  }
  return packed;
}

}  // namespace

Metrics Learner::train_language_model(const std::vector<LanguageModelBatch>& given) {
  auto& self = *implementation_;
  const auto rows = to_microbatches(given, self.options_);
  const auto agreed =
      agree(self.groups_.losses(), self.model_.speaks_for_row(), self.options_.parallel.sharding.device, rows);
  require(agreed.num_targets > 0, "the rows of this step hold no token to learn from");
  MetricSums sums;
  sums.add("loss", 0);
  const auto loss_of = [&](const LearnerRow& row, const Tensor& hidden_ND) {
    const double weight = row.own.is_filler ? 0 : 1.0 / static_cast<double>(agreed.num_targets);
    const auto result =
        log_prob_loss(hidden_ND, self.head_weight(), row.targets_N, self.log_prob_options(1),
                      [&](const Tensor& log_prob, const Tensor&, const Tensor&) { return log_prob.sum() * -weight; });
    sums.add("loss", result.loss.item<double>());
    self.count_row(sums, row.whole);
    return result.loss;
  };
  const auto update = self.update(self.make_rows(rows_or_fillers(rows, agreed.num_microbatches)), sums, loss_of);
  Metrics metrics;
  self.report(metrics, sums, update);
  metrics["loss/mean"] = sums.sum("loss");
  metrics["skipped"] = update.is_skipped;
  metrics["train_batch/num_tokens"] = static_cast<double>(agreed.num_targets);
  metrics["train_batch/num_microbatches"] = static_cast<double>(agreed.num_microbatches);
  return metrics;
}

Metrics Learner::evaluate_language_model(const std::vector<LanguageModelBatch>& given) {
  auto& self = *implementation_;
  const auto rows = to_microbatches(given, self.options_);
  const auto agreed =
      agree(self.groups_.losses(), self.model_.speaks_for_row(), self.options_.parallel.sharding.device, rows);
  require(agreed.num_targets > 0, "the rows of this evaluation hold no token to predict");
  MetricSums sums;
  sums.add("loss", 0);
  self.evaluate(self.make_rows(rows_or_fillers(rows, agreed.num_microbatches)), sums,
                [&](const LearnerRow& row, const Tensor& hidden_ND) {
                  const auto values =
                      troupe::log_probs(hidden_ND, self.head_weight(), row.targets_N, self.log_prob_options(1));
                  if (!row.own.is_filler) sums.add("loss", -values.log_prob_T.sum(at::kDouble).item<double>());
                });
  const double loss = sums.sum("loss") / static_cast<double>(agreed.num_targets);
  return {{"validation/loss", loss},
          {"validation/perplexity", std::exp(loss)},
          {"validation/num_tokens", static_cast<double>(agreed.num_targets)}};
}

}  // namespace troupe
