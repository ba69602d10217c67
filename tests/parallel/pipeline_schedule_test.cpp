// Schedules as data: sound, as idle as the formulas say, and refused where they are not sound.
#include "parallel/pipeline_schedule.h"

#include "base/error.h"
#include "parallel/pipeline.h"
#include "tests/doctest.h"

using namespace troupe;

TEST_CASE("every schedule is sound, and its idle slots are the formula's") {
  for (const auto& name : known_pipeline_schedules()) {
    for (const int num_ranks : {1, 2, 3, 4, 8}) {
      for (int m = 1; m <= 3 * num_ranks + 2; ++m) {
        if (m % microbatch_multiple(name, num_ranks) != 0) continue;
        CAPTURE(name);
        CAPTURE(num_ranks);
        CAPTURE(m);
        const auto schedule = make_pipeline_schedule(name, num_ranks, m, 3);
        const auto timeline = time_schedule(schedule);  // throws where it is not sound
        const int64_t ahead = num_ranks - 1;
        for (const auto idle : timeline.idle) {
          if (name == "ZBV" && m < 2 * num_ranks) {
            CHECK(idle >= ahead);  // too few micro-batches to fill it
          } else {
            CHECK(idle == (name == "ZBV"     ? ahead
                           : name == "ZB-H1" ? std::max<int64_t>(ahead, 2 * ahead + 1 - m)
                                             : 3 * ahead));
          }
        }
      }
    }
  }
}

TEST_CASE("activations held: GPipe all, 1F1B and the zero-bubble forms no more than they may") {
  for (const auto& name : known_pipeline_schedules()) {
    CAPTURE(name);
    constexpr int kRanks = 4, kMicrobatches = 16;
    const auto schedule = make_pipeline_schedule(name, kRanks, kMicrobatches, 2);
    for (int rank = 0; rank < kRanks; ++rank) {
      int held = 0, most = 0;
      for (const auto& action : schedule.actions[static_cast<size_t>(rank)]) {
        using Kind = PipelineAction::Kind;
        if (action.kind == Kind::kForward) ++held;
        if (action.kind == Kind::kBackward || action.kind == Kind::kWeights) --held;
        most = std::max(most, held);
      }
      CHECK(held == 0);
      const int expected = name == "GPipe"             ? kMicrobatches
                           : name == "1F1B"            ? kRanks - rank
                           : name == "ZB-H1"           ? kRanks
                           : name == "Interleaved1F1B" ? (kRanks - rank - 1) * 2 + kRanks + 1
                                                       : 2 * kRanks;
      if (name == "1F1B" || name == "GPipe" || name == "Interleaved1F1B")
        CHECK(most == expected);
      else
        CHECK(most <= expected);
    }
  }
}

TEST_CASE("a schedule that is not sound is refused, the action named") {
  const auto sound = make_pipeline_schedule("1F1B", 2, 2);
  CHECK(print(sound) == "0: F0.0 F0.1 B0.0 B0.1\n1: F1.0 B1.0 F1.1 B1.1\n");
  CHECK(draw(sound) == "0  F0  F1  .   .   B0  B0  .   B1  B1\n1  .   F0  B0  B0  F1  B1  B1  .   .\n");
  const auto broken = [&](const std::function<void(PipelineSchedule&)>& change) {
    auto schedule = sound;
    change(schedule);
    time_schedule(schedule);
  };
  CHECK_THROWS_WITH_AS(broken([](auto& s) { std::swap(s.actions[0][0], s.actions[0][2]); }),
                       doctest::Contains("waits for ever before B0.0"), Error);
  CHECK_THROWS_WITH_AS(broken([](auto& s) { s.actions[1].pop_back(); }), doctest::Contains("rank 0 waits for ever"),
                       Error);
  CHECK_THROWS_WITH_AS(broken([](auto& s) { s.actions[0].push_back(s.actions[0][0]); }),
                       doctest::Contains("F0.0 twice"), Error);
  CHECK_THROWS_WITH_AS(broken([](auto& s) { s.actions[0][0].stage = 1; }), doctest::Contains("cannot do F1.0"), Error);
  CHECK_THROWS_WITH_AS(broken([](auto& s) { s.actions[0].pop_back(); }), doctest::Contains("micro-batch 1"), Error);
  CHECK_THROWS_WITH_AS(make_pipeline_schedule("1F2B", 2, 2), doctest::Contains("known are GPipe, 1F1B"), UsageError);
  CHECK_THROWS_WITH_AS(make_pipeline_schedule("Interleaved1F1B", 4, 6), doctest::Contains("multiple of 4"), UsageError);
}

TEST_CASE("stages: as even as can be, as given, and refused where a stage would be empty") {
  const auto sizes = [](const PipelineOptions& options, int num_ranks, int64_t num_layers) {
    std::vector<int64_t> result;
    for (const auto& stage : pipeline_stages(options, num_ranks, num_layers)) result.push_back(stage.end - stage.begin);
    return result;
  };
  // The first has the embedding too, the last the final norm and the head.
  CHECK(sizes({"1F1B", 1, {}}, 4, 10) == std::vector<int64_t>{3, 3, 2, 4});
  CHECK(sizes({"1F1B", 1, {1, 2}}, 2, 3) == std::vector<int64_t>{2, 3});
  CHECK(sizes({"1F1B", 1, {0, 3}}, 2, 3) == std::vector<int64_t>{1, 4});
  const auto stages = pipeline_stages({"ZBV", 1, {}}, 2, 4);
  CHECK(stages[0].rank == 0);
  CHECK(stages[1].rank == 1);
  CHECK(stages[2].rank == 1);
  CHECK(stages[3].rank == 0);
  CHECK_THROWS_WITH_AS(pipeline_stages({"1F1B", 1, {}}, 4, 2), doctest::Contains("has none of the 2 layers"),
                       UsageError);
  CHECK_THROWS_WITH_AS(pipeline_stages({"1F1B", 1, {1, 1}}, 2, 3), doctest::Contains("2 layers, the model 3"),
                       UsageError);
  CHECK_THROWS_WITH_AS(pipeline_stages({"ZBV", 1, {1, 1}}, 2, 2), doctest::Contains("4 stages"), UsageError);
}
