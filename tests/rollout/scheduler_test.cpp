// What a step computes, without a model: a pretend cache remembers for each slot which tokens its content depends on,
// so paging, chunking, sharing, copies and preemption are checked by what a sequence would attend to.
#include <map>
#include <set>

#include "base/error.h"
#include "base/philox.h"
#include "rollout/scheduler.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

class Simulation {
 public:
  explicit Simulation(const SchedulerOptions& options)
      : options_(options), scheduler_(options, metrics_), cache_(options.num_blocks * options.block_tokens) {}

  Sequence* add(uint64_t id, std::vector<int32_t> prompt, int32_t max_new_tokens) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request.sample_id = id;
    sequence->request.prompt_tokens = prompt;
    sequence->request.sampling.max_new_tokens = max_new_tokens;
    sequence->tokens = std::move(prompt);
    Sequence* pointer = sequence.get();
    scheduler_.add(std::move(sequence));
    return pointer;
  }

  /// Ids that got a token in this step.
  std::vector<uint64_t> step(bool admit = true) {
    StepPlan plan = scheduler_.plan(version_, admit);
    write(plan);
    std::set<Sequence*> once;
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < plan.drawn.size(); ++i) {
      Sequence& sequence = *plan.drawn[i];
      REQUIRE(once.insert(&sequence).second);
      check(sequence, plan.rows[plan.draws[i].row]);
      ids.push_back(sequence.request.sample_id);
      // The next token depends on what came before, and equal contexts part by their ids.
      sequence.tokens.push_back(static_cast<int32_t>((sequence.tokens.back() * 7 + ids.back() + 1) % 97));
      sequence.log_probs.push_back(0);
      const auto num_new = static_cast<int32_t>(sequence.log_probs.size());
      first_token_.emplace(ids.back(), num_steps_);
      if (num_new < sequence.request.sampling.max_new_tokens) continue;
      CHECK(sequence.num_tokens() == static_cast<int64_t>(sequence.request.prompt_tokens.size()) + num_new);
      finished_.insert(ids.back());
      scheduler_.finish(&sequence);
    }
    last_plan_ = std::move(plan);
    ++num_steps_;
    return ids;
  }

  void new_version(bool recompute) {
    ++version_;
    scheduler_.weights_changed(recompute);
  }

  void run_until_done(int64_t most_steps) {
    for (int64_t i = 0; i < most_steps && scheduler_.num_running() + scheduler_.num_waiting() > 0; ++i) step();
    CHECK(scheduler_.num_running() + scheduler_.num_waiting() == 0);
    CHECK(scheduler_.blocks().num_available() == options_.num_blocks);
  }

  Scheduler& scheduler() { return scheduler_; }
  const EngineMetrics& metrics() const { return metrics_; }
  const StepPlan& last_plan() const { return last_plan_; }
  const std::set<uint64_t>& finished() const { return finished_; }
  const std::map<uint64_t, int64_t>& first_token() const { return first_token_; }

 private:
  struct Slot {
    uint64_t context = 0;  // of all tokens up to this one
    int64_t version = -1;
  };

  static uint64_t extend(uint64_t context, int32_t token) {
    return (context ^ static_cast<uint64_t>(token + 1)) * 0x9E3779B97F4A7C15u + 11;
  }
  Slot& slot(const int32_t* blocks, int64_t position) {
    return cache_.at(blocks[position / options_.block_tokens] * options_.block_tokens +
                     position % options_.block_tokens);
  }

  void write(const StepPlan& plan) {
    CHECK(static_cast<int64_t>(plan.rows.size()) == plan.num_prefill_rows + plan.num_decode_rows);
    // What the forward pass has room for: a chunk, and one row of every sequence.
    CHECK(static_cast<int64_t>(plan.rows.size()) <= options_.prefill_chunk_tokens + scheduler_.num_running());
    CHECK(scheduler_.num_running() <= options_.max_sequences);
    std::set<int64_t> written;
    for (const Row& row : plan.rows) {
      const uint64_t before = row.position == 0 ? 0 : slot(row.blocks, row.position - 1).context;
      Slot& target = slot(row.blocks, row.position);
      if (row.slot < 0) {
        CHECK(target.context == extend(before, row.token));
        continue;
      }
      CHECK(&target == &cache_.at(row.slot));
      CHECK(written.insert(row.slot).second);  // nobody writes to another's block
      target = {extend(before, row.token), version_};
    }
    for (const auto& copy : plan.copies) {
      for (int64_t i = 0; i < copy.num_tokens; ++i) {
        cache_.at(copy.to * options_.block_tokens + i) = cache_.at(copy.from * options_.block_tokens + i);
      }
    }
  }

  /// All that the drawn sequence attends to is its own; where it says so, of the current version.
  void check(const Sequence& sequence, const Row& row) {
    CHECK(row.position == sequence.num_tokens() - 1);
    CHECK(row.token == sequence.tokens.back());
    uint64_t context = 0;
    for (int64_t position = 0; position < sequence.num_tokens(); ++position) {
      context = extend(context, sequence.tokens[position]);
      const Slot& content = slot(sequence.blocks.data(), position);
      REQUIRE(content.context == context);
      if (sequence.cache_version == version_) REQUIRE(content.version == version_);
    }
  }

  SchedulerOptions options_;
  EngineMetrics metrics_;
  Scheduler scheduler_;
  std::vector<Slot> cache_;
  StepPlan last_plan_;
  std::set<uint64_t> finished_;
  std::map<uint64_t, int64_t> first_token_;
  int64_t version_ = 1, num_steps_ = 0;
};

std::vector<int32_t> prompt_of(int32_t length, int32_t first = 0) {
  std::vector<int32_t> prompt(length);
  for (int32_t i = 0; i < length; ++i) prompt[i] = (first + i) % 97;
  return prompt;
}

TEST_CASE("a prompt enters in chunks while others decode") {
  Simulation simulation({4, 5, 100, 4});
  simulation.add(1, prompt_of(3), 20);
  CHECK((simulation.step() == std::vector<uint64_t>{1}));
  simulation.add(2, prompt_of(17, 50), 20);
  for (const int64_t rows : {5, 5, 5}) {
    CHECK((simulation.step() == std::vector<uint64_t>{1}));
    CHECK(simulation.last_plan().num_prefill_rows == rows);
    CHECK(simulation.last_plan().num_decode_rows == 1);
  }
  CHECK((simulation.step() == std::vector<uint64_t>{1, 2}));
  CHECK(simulation.last_plan().num_prefill_rows == 2);
  CHECK(simulation.metrics().prefill_tokens == 20);
  simulation.run_until_done(40);
}

TEST_CASE("no more than max_sequences run; places are given in order of arrival") {
  Simulation simulation({3, 64, 100, 4});
  for (uint64_t id = 0; id < 8; ++id) simulation.add(id, prompt_of(6, static_cast<int32_t>(10 * id)), 4);
  CHECK((simulation.step() == std::vector<uint64_t>{0, 1, 2}));
  CHECK(simulation.scheduler().num_waiting() == 5);
  CHECK(simulation.step(false).size() == 3);
  for (int i = 0; i < 2; ++i) simulation.step(false);
  CHECK(simulation.finished().size() == 3);
  CHECK(simulation.step(false).empty());  // nothing new while the engine drains for new weights
  CHECK(simulation.scheduler().nothing_started());
  CHECK((simulation.step() == std::vector<uint64_t>{3, 4, 5}));
  simulation.run_until_done(20);
}

TEST_CASE("the samples of a group compute their prompt once and copy only its last block") {
  Simulation simulation({8, 64, 100, 4});
  for (uint64_t id = 0; id < 4; ++id) simulation.add(id, prompt_of(10), 6);
  CHECK(simulation.step().size() == 4);
  CHECK(simulation.last_plan().rows.size() == 10);
  CHECK(simulation.last_plan().copies.size() == 3);
  CHECK(simulation.metrics().prefill_tokens_saved == 30);
  CHECK(simulation.scheduler().blocks().num_available() == 100 - (2 + 4));
  // A later sample finds the full blocks; a prompt of whole blocks needs one row for its logits.
  simulation.add(9, prompt_of(10), 6);
  simulation.step();
  CHECK(simulation.last_plan().num_prefill_rows == 2);
  simulation.add(10, prompt_of(8), 6);
  simulation.step();
  CHECK(simulation.last_plan().num_prefill_rows == 1);
  CHECK(simulation.metrics().prefill_tokens_saved == 30 + 8 + 7);
  simulation.run_until_done(20);
  CHECK(simulation.metrics().preemptions == 0);
}

TEST_CASE("where the cache is short the last to come gives way, and comes back before newcomers") {
  Simulation simulation({4, 64, 9, 4});
  for (uint64_t id = 0; id < 3; ++id) simulation.add(id, prompt_of(8, static_cast<int32_t>(20 * id)), 16);
  simulation.add(3, prompt_of(8, 80), 16);
  std::vector<std::vector<uint64_t>> steps;
  while (simulation.finished().empty()) steps.push_back(simulation.step());
  CHECK(simulation.finished() == std::set<uint64_t>{0});
  CHECK(simulation.metrics().preemptions > 0);
  for (const auto& ids : steps) CHECK(std::count(ids.begin(), ids.end(), 0) == 1);  // the oldest never waits
  simulation.run_until_done(200);
  CHECK(simulation.metrics().recomputed_tokens > 0);
  CHECK(simulation.finished().size() == 4);
  for (uint64_t id = 1; id < 4; ++id) CHECK(simulation.first_token().at(id - 1) <= simulation.first_token().at(id));
}

TEST_CASE("a long request ends though short ones never stop coming") {
  Simulation simulation({3, 4, 12, 4});
  simulation.add(1000, prompt_of(30), 14);  // nearly the whole cache
  uint64_t next = 0;
  int64_t num_steps = 0;
  for (; simulation.finished().count(1000) == 0 && num_steps < 200; ++num_steps) {
    if (simulation.scheduler().num_waiting() < 2)
      simulation.add(next, prompt_of(5, static_cast<int32_t>(next)), 3), ++next;
    simulation.step();
  }
  CHECK(num_steps < 30);
  // And one that comes into a full house as well.
  simulation.add(1001, prompt_of(30, 40), 14);
  for (num_steps = 0; simulation.finished().count(1001) == 0 && num_steps < 200; ++num_steps) {
    if (simulation.scheduler().num_waiting() < 3)
      simulation.add(next, prompt_of(5, static_cast<int32_t>(next)), 3), ++next;
    simulation.step();
  }
  CHECK(num_steps < 80);
}

TEST_CASE("a request that cannot ever fit is an error, not a wait") {
  Simulation simulation({3, 64, 4, 4});
  simulation.add(1, prompt_of(17), 3);
  CHECK_THROWS_WITH_AS(simulation.step(), doctest::Contains("too small"), Error);
}

TEST_CASE("cancelled sequences give their blocks back wherever they are") {
  Simulation simulation({2, 4, 100, 4});
  for (uint64_t id = 0; id < 4; ++id) simulation.add(id, prompt_of(9, static_cast<int32_t>(20 * id)), 5);
  simulation.step();
  simulation.step();
  CHECK(simulation.scheduler().cancel(0));  // half computed
  CHECK(simulation.scheduler().cancel(3));  // waiting
  CHECK_FALSE(simulation.scheduler().cancel(0));
  simulation.run_until_done(40);
  CHECK((simulation.finished() == std::set<uint64_t>{1, 2}));
}

TEST_CASE("random work in random budgets always attends to its own tokens and always ends") {
  int64_t preemptions = 0, saved = 0, recomputed = 0;
  for (uint32_t trial = 0; trial < 60; ++trial) {
    uint32_t counter = 0;
    const auto random = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random_words(5, trial, ++counter, RandomStream::kDataOrder)[0] %
                                        static_cast<uint64_t>(high - low + 1));
    };
    const auto block_tokens = static_cast<int32_t>(random(1, 5));
    const int64_t longest = 44, num_blocks = (longest + block_tokens - 1) / block_tokens + random(0, 12);
    Simulation simulation(
        {static_cast<int32_t>(random(1, 7)), static_cast<int32_t>(random(1, 20)), num_blocks, block_tokens});
    std::set<uint64_t> expected;
    uint64_t next = 0;
    for (int i = 0; i < 150; ++i) {
      if (next < 30 && random(0, 2) == 0) {
        const auto length = static_cast<int32_t>(random(1, 28)), first = static_cast<int32_t>(random(0, 1) * 40);
        for (int64_t sample = random(1, 3); sample > 0; --sample) {
          simulation.add(next, prompt_of(length, first), static_cast<int32_t>(random(1, 16)));
          expected.insert(next++);
        }
      }
      if (random(0, 40) == 0) simulation.new_version(random(0, 1) == 0);
      if (next > 0 && random(0, 60) == 0) {
        const auto id = static_cast<uint64_t>(random(0, static_cast<int64_t>(next) - 1));
        if (simulation.scheduler().cancel(id)) expected.erase(id);
      }
      simulation.step();
    }
    simulation.run_until_done(4000);
    CHECK(simulation.finished() == expected);
    preemptions += simulation.metrics().preemptions;
    saved += simulation.metrics().prefill_tokens_saved;
    recomputed += simulation.metrics().recomputed_tokens;
  }
  CHECK(preemptions > 100);
  CHECK(saved > 1000);
  CHECK(recomputed > 1000);
}

}  // namespace
}  // namespace troupe
