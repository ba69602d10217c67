#include "parallel/pipeline_schedule.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace troupe {
namespace {

using Kind = PipelineAction::Kind;
using Actions = std::vector<PipelineAction>;

Actions gpipe(int rank, int num_microbatches) {
  Actions actions;
  for (int m = 0; m < num_microbatches; ++m) actions.push_back({Kind::kForward, rank, m});
  for (int m = 0; m < num_microbatches; ++m) actions.push_back({Kind::kBackward, rank, m});
  return actions;
}

/// Forwards run ahead by `num_ahead`, then one backward follows each forward. The orders name stage and micro-batch.
Actions one_forward_one_backward(const std::vector<std::pair<int, int>>& forwards,
                                 const std::vector<std::pair<int, int>>& backwards, size_t num_ahead) {
  Actions actions;
  size_t forward = 0;
  const auto add_forward = [&] {
    if (forward == forwards.size()) return;
    actions.push_back({Kind::kForward, forwards[forward].first, forwards[forward].second});
    ++forward;
  };
  while (forward < num_ahead && forward < forwards.size()) add_forward();
  for (const auto& [stage, microbatch] : backwards) {
    add_forward();
    actions.push_back({Kind::kBackward, stage, microbatch});
  }
  return actions;
}

std::vector<std::pair<int, int>> in_order(int stage, int num_microbatches) {
  std::vector<std::pair<int, int>> order;
  for (int m = 0; m < num_microbatches; ++m) order.emplace_back(stage, m);
  return order;
}

/// Micro-batches go in groups of one a rank: the whole group through a stage of this rank, then through its next one.
Actions interleaved(int rank, int num_ranks, int num_microbatches, int num_own) {
  std::vector<std::pair<int, int>> forwards, backwards;
  for (int group = 0; group < num_microbatches; group += num_ranks) {
    for (int own = 0; own < num_own; ++own) {
      for (int m = group; m < group + num_ranks; ++m) {
        forwards.emplace_back(own * num_ranks + rank, m);
        backwards.emplace_back((num_own - 1 - own) * num_ranks + rank, m);
      }
    }
  }
  const int num_ahead = (num_ranks - rank - 1) * 2 + (num_own - 1) * num_ranks;
  return one_forward_one_backward(forwards, backwards, static_cast<size_t>(num_ahead));
}

/// 1F1B with its backward in halves; rank r lets r weight gradients wait, for the slots at the end.
Actions zero_bubble_h1(int rank, int num_ranks, int num_microbatches) {
  const auto order = in_order(rank, num_microbatches);
  Actions actions;
  int num_inputs = 0, num_weights = 0;
  for (const auto& action : one_forward_one_backward(order, order, static_cast<size_t>(num_ranks - rank - 1))) {
    if (action.kind == Kind::kForward) {
      actions.push_back(action);
      continue;
    }
    actions.push_back({Kind::kInput, rank, action.microbatch});
    if (++num_inputs - num_weights > rank) actions.push_back({Kind::kWeights, rank, num_weights++});
  }
  while (num_weights < num_microbatches) actions.push_back({Kind::kWeights, rank, num_weights++});
  return actions;
}

/// Slot by slot, every rank takes what is ready in this order: forward of its late stage, backward of its early one,
/// backward of the late one, forward of the early one while fewer than 2 P activations are held, then weights.
std::vector<Actions> zero_bubble_v(int num_ranks, int num_microbatches) {
  const int num_stages = 2 * num_ranks, limit = 2 * num_ranks;
  struct Progress {
    int forward = 0, input = 0, weights = 0;      // actions taken
    std::vector<int64_t> forward_end, input_end;  // by micro-batch
  };
  std::vector<Progress> stages(static_cast<size_t>(num_stages));
  std::vector<Actions> actions(static_cast<size_t>(num_ranks));
  const auto is_done = [](const std::vector<int64_t>& ends, int microbatch, int64_t slot) {
    return microbatch < static_cast<int>(ends.size()) && ends[static_cast<size_t>(microbatch)] <= slot;
  };
  int num_left = num_stages * num_microbatches;
  for (int64_t slot = 0; num_left > 0; ++slot) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int early = rank, late = num_stages - 1 - rank;
      const auto at = [&](int stage) -> Progress& { return stages[static_cast<size_t>(stage)]; };
      const int num_held = at(early).forward - at(early).weights + at(late).forward - at(late).weights;
      const auto forward_ready = [&](int stage) {
        const auto& s = at(stage);
        return s.forward < num_microbatches && num_held < limit &&
               (stage == 0 || is_done(at(stage - 1).forward_end, s.forward, slot));
      };
      const auto input_ready = [&](int stage) {
        const auto& s = at(stage);
        return s.input < s.forward && is_done(s.forward_end, s.input, slot) &&
               (stage + 1 == num_stages || is_done(at(stage + 1).input_end, s.input, slot));
      };
      const auto weights_ready = [&](int stage) { return at(stage).weights < at(stage).input; };
      const auto take = [&](Kind kind, int stage) {
        auto& s = at(stage);
        int& count = kind == Kind::kForward ? s.forward : kind == Kind::kInput ? s.input : s.weights;
        actions[static_cast<size_t>(rank)].push_back({kind, stage, count++});
        if (kind == Kind::kForward) s.forward_end.push_back(slot + 1);
        if (kind == Kind::kInput) s.input_end.push_back(slot + 1);
        if (kind == Kind::kWeights) --num_left;
      };
      if (forward_ready(late)) {
        take(Kind::kForward, late);
      } else if (input_ready(early)) {
        take(Kind::kInput, early);
      } else if (input_ready(late)) {
        take(Kind::kInput, late);
      } else if (forward_ready(early)) {
        take(Kind::kForward, early);
      } else if (weights_ready(early)) {
        take(Kind::kWeights, early);
      } else if (weights_ready(late)) {
        take(Kind::kWeights, late);
      }
    }
  }
  return actions;
}

int64_t cost(Kind kind) { return kind == Kind::kBackward ? 2 : 1; }

std::string describe(const PipelineAction& a) { return concat(static_cast<char>(a.kind), a.stage, ".", a.microbatch); }

}  // namespace

const std::vector<std::string>& known_pipeline_schedules() {
  static const std::vector<std::string> names = {"GPipe", "1F1B", "Interleaved1F1B", "ZB-H1", "ZBV"};
  return names;
}

int stages_per_rank(const std::string& name, int interleaved_stages_per_rank) {
  const auto& known = known_pipeline_schedules();
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw UsageError(concat("parallelism.pipeline_parallel_schedule = \"", name, "\": known are ", join(known, ", ")));
  return name == "ZBV" ? 2 : name == "Interleaved1F1B" ? interleaved_stages_per_rank : 1;
}

std::vector<int> ranks_of_stages(const std::string& name, int num_ranks, int interleaved_stages_per_rank) {
  std::vector<int> ranks;
  const int num_stages = num_ranks * stages_per_rank(name, interleaved_stages_per_rank);
  for (int stage = 0; stage < num_stages; ++stage)
    ranks.push_back(name == "ZBV" && stage >= num_ranks ? num_stages - 1 - stage : stage % num_ranks);
  return ranks;
}

int microbatch_multiple(const std::string& name, int num_ranks) { return name == "Interleaved1F1B" ? num_ranks : 1; }

PipelineSchedule make_pipeline_schedule(const std::string& name, int num_ranks, int num_microbatches,
                                        int interleaved_stages_per_rank) {
  PipelineSchedule schedule{
      name, num_ranks, num_microbatches, ranks_of_stages(name, num_ranks, interleaved_stages_per_rank), {}};
  const int multiple = microbatch_multiple(name, num_ranks);
  if (num_microbatches % multiple != 0)
    throw UsageError(concat("schedule ", name, " on ", num_ranks, " ranks takes a multiple of ", multiple,
                            " micro-batches, not ", num_microbatches));
  if (name == "ZBV") {
    schedule.actions = zero_bubble_v(num_ranks, num_microbatches);
    return schedule;
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto order = in_order(rank, num_microbatches);
    schedule.actions.push_back(
        name == "GPipe"   ? gpipe(rank, num_microbatches)
        : name == "1F1B"  ? one_forward_one_backward(order, order, static_cast<size_t>(num_ranks - rank - 1))
        : name == "ZB-H1" ? zero_bubble_h1(rank, num_ranks, num_microbatches)
                          : interleaved(rank, num_ranks, num_microbatches, interleaved_stages_per_rank));
  }
  return schedule;
}

PipelineTimeline time_schedule(const PipelineSchedule& schedule) {
  const auto num_ranks = static_cast<size_t>(schedule.num_ranks);
  require(schedule.actions.size() == num_ranks, "pipeline schedule: ", schedule.actions.size(), " lists for ",
          num_ranks, " ranks");
  std::map<std::tuple<Kind, int, int>, int64_t> ends;
  const auto end_of = [&](Kind kind, int stage, int microbatch) -> std::optional<int64_t> {
    const auto found = ends.find({kind, stage, microbatch});
    return found == ends.end() ? std::nullopt : std::optional(found->second);
  };
  // A backward's gradient comes from the next stage's B or I, whichever it does.
  const auto gradient_end = [&](int stage, int microbatch) {
    const auto whole = end_of(Kind::kBackward, stage, microbatch);
    return whole ? whole : end_of(Kind::kInput, stage, microbatch);
  };
  const auto inputs_ready = [&](const PipelineAction& a) -> std::optional<int64_t> {
    if (a.kind == Kind::kForward) return a.stage == 0 ? 0 : end_of(Kind::kForward, a.stage - 1, a.microbatch);
    if (a.kind == Kind::kWeights) return end_of(Kind::kInput, a.stage, a.microbatch);
    const auto forward = end_of(Kind::kForward, a.stage, a.microbatch);
    if (!forward || a.stage + 1 == schedule.num_stages()) return forward;
    const auto gradient = gradient_end(a.stage + 1, a.microbatch);
    return gradient ? std::optional(std::max(*forward, *gradient)) : std::nullopt;
  };
  PipelineTimeline timeline;
  timeline.start.resize(num_ranks);
  std::vector<int64_t> now(num_ranks, 0), work(num_ranks, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      auto& start = timeline.start[rank];
      for (; start.size() < schedule.actions[rank].size(); moved = true) {
        const auto& action = schedule.actions[rank][start.size()];
        require(action.stage >= 0 && action.stage < schedule.num_stages() &&
                    schedule.rank_of_stage[static_cast<size_t>(action.stage)] == static_cast<int>(rank) &&
                    action.microbatch >= 0 && action.microbatch < schedule.num_microbatches,
                "pipeline schedule ", schedule.name, ": rank ", rank, " cannot do ", describe(action));
        const auto ready = inputs_ready(action);
        if (!ready) break;
        start.push_back(std::max(now[rank], *ready));
        now[rank] = start.back() + cost(action.kind);
        work[rank] += cost(action.kind);
        const bool is_new = ends.try_emplace({action.kind, action.stage, action.microbatch}, now[rank]).second;
        require(is_new, "pipeline schedule ", schedule.name, ": rank ", rank, " does ", describe(action), " twice");
      }
    }
  }
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    const auto num_done = timeline.start[rank].size();
    require(num_done == schedule.actions[rank].size(), "pipeline schedule ", schedule.name, ": rank ", rank,
            " waits for ever before ",
            num_done < schedule.actions[rank].size() ? describe(schedule.actions[rank][num_done]) : "");
    timeline.length = std::max(timeline.length, now[rank]);
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int m = 0; m < schedule.num_microbatches; ++m) {
      const bool is_whole = end_of(Kind::kBackward, stage, m).has_value();
      const bool is_halves = end_of(Kind::kInput, stage, m) && end_of(Kind::kWeights, stage, m);
      require(end_of(Kind::kForward, stage, m) && is_whole != is_halves, "pipeline schedule ", schedule.name,
              ": micro-batch ", m, " does not pass stage ", stage, " once forward and once backward");
    }
  }
  for (const auto busy : work) timeline.idle.push_back(timeline.length - busy);
  return timeline;
}

std::string print(const PipelineSchedule& schedule) {
  std::string text;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    text += concat(rank, ":");
    for (const auto& action : schedule.actions[rank]) text += " " + describe(action);
    text += "\n";
  }
  return text;
}

std::string draw(const PipelineSchedule& schedule) {
  const auto timeline = time_schedule(schedule);
  std::string text;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    std::vector<std::string> cells(static_cast<size_t>(timeline.length), ".");
    for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      const auto& action = schedule.actions[rank][i];
      const char letter = static_cast<char>(action.kind);
      for (int64_t slot = 0; slot < cost(action.kind); ++slot)
        cells[static_cast<size_t>(timeline.start[rank][i] + slot)] = concat(
            action.stage < schedule.num_ranks ? letter : static_cast<char>(std::tolower(letter)), action.microbatch);
    }
    text += concat(rank, " ");
    for (auto cell : cells) {
      cell.resize(std::max<size_t>(cell.size(), 3), ' ');
      text += " " + cell;
    }
    while (text.ends_with(' ')) text.pop_back();
    text += "\n";
  }
  return text;
}

}  // namespace troupe
