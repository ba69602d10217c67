// The balancing loss of routers that choose by softmax (Fedus et al. 2022, "Switch Transformers"), as transformers
// computes it: over the tokens of a row and all its layers together
//
//   loss = E * sum over experts of f_e * P_e       f_e chosen places a token, P_e mean probability (no gradient in f)
//
// It needs no graph of its own: a router's logits get their gradient where the experts' weights get theirs, once all
// layers of the row have said what they chose. Ranks that share the row's tokens join f and P before the backward.
#pragma once

#include "models/blocks/router.h"
#include "models/config.h"
#include "parallel/rank_groups.h"

namespace troupe {

class RouterBalance {
 public:
  RouterBalance(const ModelConfig& config, const RankGroups& groups) : groups_(groups), config_(config) {}

  /// Before a step's first row.
  void start();
  /// Behind its last: what is computed from here on is not balanced.
  void stop() { row_ = nullptr; }
  /// Before a row's forward. `weight` times its loss is its part of the step's; `is_counted_T` as in ExpertLoad.
  void begin_row(double weight, Tensor is_counted_T);
  /// After its forward, before its backward; every rank that shares the row calls.
  void end_row();
  /// Takes part in a layer's routing: returns it with the loss's gradient hung behind its weights.
  blocks::Routing attach(const blocks::Routing& routing) const;
  /// Of the rows since `start`; each counts on one of the context ranks that share it.
  double loss() const { return loss_; }

  /// What the layers of a row have said so far; of all its ranks after end_row.
  struct Row {
    double weight = 0;
    Tensor is_counted_T;
    Tensor sums;  // float64 [2 E + 1]: chosen places by expert, probabilities by expert, tokens
  };

 private:
  RankGroups groups_;
  ModelConfig config_;
  std::shared_ptr<Row> row_;  // null: nothing is balanced
  double loss_ = 0;
};

}  // namespace troupe
