// Trajectories to packed rows: shared prompts, fair shares, records keyed by sample.
#include "training/packing.h"

#include <map>
#include <set>

#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

Trajectory make(uint64_t group, uint32_t index, std::vector<int32_t> prompt, std::vector<int32_t> completion) {
  Trajectory t;
  t.group = group;
  t.sample_id = make_sample_id(group, index);
  t.prompt_length = static_cast<int32_t>(prompt.size());
  t.tokens = std::move(prompt);
  t.tokens.insert(t.tokens.end(), completion.begin(), completion.end());
  t.loss_mask.assign(t.tokens.size(), 0);
  std::fill(t.loss_mask.begin() + t.prompt_length, t.loss_mask.end(), 1);
  t.log_probs.assign(t.tokens.size(), 0);
  t.versions = {{t.prompt_length, 0}};
  return t;
}

std::vector<std::vector<uint8_t>> masks(const std::vector<Trajectory>& batch) {
  std::vector<std::vector<uint8_t>> result;
  for (const auto& t : batch) result.push_back(t.loss_mask);
  return result;
}

/// The tokens that row `position` can see, itself last: what the model conditions on.
std::vector<int32_t> visible(const PackedRow& row, int64_t position) {
  const auto& segments = row.layout.segments;
  for (const auto& segment : segments) {
    if (position < segment.begin || position >= segment.begin + segment.length) continue;
    std::vector<int32_t> tokens;
    if (segment.parent >= 0) {
      const auto& parent = segments[static_cast<size_t>(segment.parent)];
      tokens.assign(row.tokens.begin() + parent.begin, row.tokens.begin() + parent.begin + parent.length);
    }
    tokens.insert(tokens.end(), row.tokens.begin() + segment.begin, row.tokens.begin() + position + 1);
    return tokens;
  }
  fail("position outside of the row");
}

/// Every wanted token once, predicted from exactly the tokens before it.
void check_plan(const std::vector<Trajectory>& batch, const std::vector<std::vector<uint8_t>>& wanted,
                const std::vector<std::vector<PackedRow>>& ranks) {
  std::set<std::pair<int64_t, int32_t>> seen;
  for (const auto& rows : ranks) {
    CHECK(rows.size() == ranks.front().size());
    for (const auto& row : rows) {
      row.layout.check();
      REQUIRE(static_cast<size_t>(row.layout.num_tokens) == row.tokens.size());
      if (row.is_filler) continue;
      for (size_t i = 0; i < row.targets.size(); ++i) {
        const auto& t = batch[static_cast<size_t>(row.samples[i])];
        const auto index = row.token_indices[i];
        CHECK(seen.insert({row.samples[i], index}).second);
        CHECK(row.targets[i] == t.tokens[static_cast<size_t>(index)]);
        CHECK(visible(row, row.predictors[i]) == std::vector<int32_t>(t.tokens.begin(), t.tokens.begin() + index));
      }
    }
  }
  size_t num_wanted = 0;
  for (const auto& mask : wanted) num_wanted += static_cast<size_t>(std::count(mask.begin(), mask.end(), 1));
  CHECK(seen.size() == num_wanted);
}

std::vector<int32_t> numbers(int32_t first, int32_t count) {
  std::vector<int32_t> result;
  for (int32_t i = 0; i < count; ++i) result.push_back(first + i);
  return result;
}

std::vector<Trajectory> groups(int num_groups, int num_samples) {
  std::vector<Trajectory> batch;
  for (int g = 0; g < num_groups; ++g)
    for (int k = 0; k < num_samples; ++k)
      batch.push_back(make(static_cast<uint64_t>(g), static_cast<uint32_t>(k), numbers(100 * g, 5 + g),
                           numbers(1000 * g + 50 * k, 1 + (3 * g + 5 * k) % 9)));
  return batch;
}

}  // namespace

TEST_CASE("a group's prompt stands in a row once, and its last token predicts every first completion token") {
  const std::vector<Trajectory> batch = {make(3, 0, {1, 2, 3}, {4, 5}), make(3, 1, {1, 2, 3}, {6, 7, 8})};
  const auto ranks = pack_trajectories(batch, masks(batch), {});
  REQUIRE(ranks.size() == 1);
  REQUIRE(ranks[0].size() == 1);
  const auto& row = ranks[0][0];
  CHECK(row.tokens == std::vector<int32_t>{1, 2, 3, 6, 7, 4});  // the last token of each completion is a target only
  CHECK(row.predictors == std::vector<int64_t>{2, 3, 4, 2, 5});
  CHECK(row.targets == std::vector<int32_t>{6, 7, 8, 4, 5});
  CHECK(row.samples == std::vector<int64_t>{1, 1, 1, 0, 0});
  check_plan(batch, masks(batch), ranks);
}

TEST_CASE("completions of one token need no segment") {
  const std::vector<Trajectory> batch = {make(0, 0, {1, 2}, {3}), make(0, 1, {1, 2}, {4})};
  const auto ranks = pack_trajectories(batch, masks(batch), {});
  CHECK(ranks[0][0].tokens == std::vector<int32_t>{1, 2});
  check_plan(batch, masks(batch), ranks);
}

TEST_CASE("every budget, number of ranks and sharing gives the same records") {
  const auto batch = groups(5, 6);
  const auto wanted = masks(batch);
  for (int num_ranks : {1, 2, 4, 7})
    for (int64_t budget : {8, 20, 60, 10000})
      for (bool share : {true, false}) {
        CAPTURE(num_ranks);
        CAPTURE(budget);
        const auto ranks = pack_trajectories(batch, wanted, {num_ranks, budget, share});
        CHECK(ranks.size() == static_cast<size_t>(num_ranks));
        check_plan(batch, wanted, ranks);
        for (const auto& rows : ranks)
          for (const auto& row : rows)
            CHECK((static_cast<int64_t>(row.tokens.size()) <= budget || row.layout.segments.size() <= 2));
      }
}

TEST_CASE("ranks get like amounts of tokens") {
  const auto batch = groups(8, 8);
  const auto ranks = pack_trajectories(batch, masks(batch), {4, 200, true});
  int64_t least = INT64_MAX, most = 0;
  for (const auto& rows : ranks) {
    least = std::min(least, num_row_tokens(rows, false));
    most = std::max(most, num_row_tokens(rows, false));
  }
  CHECK(most <= least * 5 / 4);
}

TEST_CASE("B017 each record keeps its own sample, whatever order the batch came in") {
  std::vector<Trajectory> batch;
  const int lengths[] = {9, 2, 7, 4, 8, 1};
  for (uint32_t i = 0; i < 6; ++i)
    batch.push_back(make(i, 0, {1, 2}, numbers(10 * static_cast<int32_t>(i), lengths[i])));
  const auto keyed = [](const std::vector<Trajectory>& samples) {
    std::map<std::pair<uint64_t, int32_t>, int32_t> records;
    for (const auto& rows : pack_trajectories(samples, masks(samples), {1, 6, true}))
      for (const auto& row : rows)
        for (size_t i = 0; i < row.targets.size(); ++i)
          records[{samples[static_cast<size_t>(row.samples[i])].sample_id, row.token_indices[i]}] = row.targets[i];
    return records;
  };
  auto reversed = batch;
  std::reverse(reversed.begin(), reversed.end());
  CHECK(keyed(batch) == keyed(reversed));
  CHECK(keyed(batch).size() == 31);
}

TEST_CASE("a rank without work gets a filler row, and a batch without work gets none") {
  const std::vector<Trajectory> batch = {make(0, 0, {1, 2}, {3, 4})};
  const auto ranks = pack_trajectories(batch, masks(batch), {2, 100, true});
  CHECK(!ranks[0][0].is_filler);
  CHECK(ranks[1][0].is_filler);
  CHECK(num_row_tokens(ranks[1], false) == 0);
  const auto none = pack_trajectories(batch, std::vector<std::vector<uint8_t>>{{0, 0, 0, 0}}, {2, 100, true});
  CHECK(none[0].empty());
  CHECK(none[1].empty());
}

TEST_CASE("tool tokens are context, not targets, and differing prompts are not shared") {
  std::vector<Trajectory> batch = {make(0, 0, {1, 2}, {3, 4, 5, 6}), make(0, 1, {1, 9}, {3, 4})};
  batch[0].loss_mask[3] = batch[0].loss_mask[4] = 0;
  const auto ranks = pack_trajectories(batch, masks(batch), {});
  check_plan(batch, masks(batch), ranks);
  CHECK(ranks[0][0].tokens.size() == 5 + 3);
}

TEST_CASE("the first token has no predictor") {
  const std::vector<Trajectory> batch = {make(0, 0, {}, {3, 4})};
  CHECK_THROWS_AS(pack_trajectories(batch, masks(batch), {}), Error);
}

}  // namespace troupe
