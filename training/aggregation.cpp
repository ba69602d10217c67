#include "training/aggregation.h"

#include "training/choices.h"

namespace troupe {

Aggregation parse_aggregation(const std::string& name) {
  return choose<Aggregation>("algorithm.aggregation", name,
                             {{"token-mean", Aggregation::kTokenMean},
                              {"sequence-mean", Aggregation::kSequenceMean},
                              {"constant", Aggregation::kConstant}});
}

double token_weight(Aggregation mode, const LossCounts& counts, int64_t sequence_tokens, double constant_length) {
  double denominator = 0;
  switch (mode) {
    case Aggregation::kTokenMean:
      denominator = static_cast<double>(counts.num_tokens);
      break;
    case Aggregation::kSequenceMean:
      denominator = static_cast<double>(counts.num_sequences) * static_cast<double>(sequence_tokens);
      break;
    case Aggregation::kConstant:
      denominator = static_cast<double>(counts.num_sequences_in_batch) * constant_length;
      break;
  }
  return denominator > 0 ? 1 / denominator : 0;
}

}  // namespace troupe
