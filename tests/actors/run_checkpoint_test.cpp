// What a run's checkpoint holds of the learner: everything that its next step depends on.
#include "actors/run_checkpoint.h"

#include <unistd.h>

#include "base/file.h"
#include "tests/doctest.h"
#include "tests/training/learner_support.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;

struct CheckpointFolder {
  fs::path path = fs::temp_directory_path() / concat("troupe-run-checkpoints-", ::getpid());
  CheckpointFolder() { fs::remove_all(path); }
  ~CheckpointFolder() { fs::remove_all(path); }
};

LearnerOptions adaptive_options() {
  auto options = learner_options();
  options.max_norm = 1;
  options.optimizer.weight_decay = 0.1;
  options.schedule = {.warmup_steps = 2, .total_steps = 8, .decay_ratio = 0.5};
  options.algorithm.kl_coefficient = 0.1;
  options.algorithm.kl_target = 0.02;
  options.algorithm.kl_horizon = 40;
  options.algorithm.num_minibatches = 2;
  return options;
}

/// Runs `body` on ranks of one layout, each with a learner whose weights a checkpoint must replace.
void with_groups(int num_replicas, int num_shards,
                 const std::function<void(Learner& learner, const RankGroups& groups)>& body) {
  const auto config = learner_config();
  const auto weights = learner_weights(config);
  auto ranks = make_thread_groups({.replicate = num_replicas, .shard = num_shards}, std::chrono::seconds(30));
  std::mutex mutex;
  std::string first_error;
  std::vector<std::thread> threads;
  for (auto& groups : ranks) {
    threads.emplace_back([&] {
      try {
        Learner learner(config, groups, adaptive_options());
        learner.load([&](const std::string& name) { return weights.at(name); });
        body(learner, groups);
        groups.world().barrier("end");
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (first_error.empty()) first_error = error.what();
        groups.abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  REQUIRE_MESSAGE(first_error.empty(), first_error);
}

TensorMap copies(TensorMap tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return tensors;
}

}  // namespace

TEST_CASE("steps go on from a checkpoint as if nothing had been: weights, moments, schedule, adaptive KL coefficient") {
  const CheckpointFolder folder;
  const auto batch = learner_batch();
  TensorMap expected;
  nlohmann::json state;
  double coefficient_at_save = 0;
  with_groups(1, 2, [&](Learner& learner, const RankGroups& groups) {
    CheckpointWriter writer(groups.shards(), {.is_async = true});
    for (int step = 1; step <= 2; ++step) learner.train_policy(batch);
    if (groups.world().rank() == 0) coefficient_at_save = learner.kl_coefficient();
    save_checkpoint({folder.path, 2, R"({"step":2,"mine":[1,2]})", "groups", 3}, learner, groups, writer);
    learner.train_policy(batch);  // at once: what is saved is as of the call (B085)
    writer.wait();
    const auto weights = copies(learner.gather_weights(at::kFloat));
    if (groups.world().rank() != 0) return;
    expected = weights;
    state = learner.state();
  });
  CHECK(coefficient_at_save != 0.1);  // it has moved, so that a lost one would be seen
  const auto found = find_checkpoint(folder.path);
  REQUIRE(found.has_value());
  CHECK(found->state.at("mine") == nlohmann::json{1, 2});
  CHECK(found->state.at("learner").at("step") == 4);  // two mini-batches a call
  CHECK(found->state.at("learner").at("kl_coefficient") == coefficient_at_save);
  CHECK(found->groups == "groups");
  for (const auto& [num_replicas, num_shards] : std::vector<std::pair<int, int>>{{1, 2}, {1, 1}, {1, 4}, {2, 2}}) {
    CAPTURE(num_replicas);
    CAPTURE(num_shards);
    with_groups(num_replicas, num_shards, [&](Learner& learner, const RankGroups& groups) {
      load_checkpoint(found->path, learner);
      learner.train_policy(batch);
      const auto weights = copies(learner.gather_weights(at::kFloat));
      if (groups.world().rank() != 0) return;
      const double difference = relative_difference(weights, expected);
      // The same layout repeats bit for bit; another one within the rounding of two steps of AdamW.
      CHECK(difference <= (num_replicas == 1 && num_shards == 2 ? 0 : 1e-5));
      CHECK(learner.state().at("step") == state.at("step"));
      CHECK(learner.kl_coefficient() == doctest::Approx(state.at("kl_coefficient").get<double>()));
    });
  }
}

TEST_CASE("a checkpoint without the learner's state, or of another model, is refused by name") {
  const CheckpointFolder folder;
  with_groups(1, 1, [&](Learner& learner, const RankGroups& groups) {
    CheckpointWriter writer(groups.shards(), {});
    save_checkpoint({folder.path, 1, "{}", "", 0}, learner, groups, writer);
    const auto path = folder.path / "step-1";
    write_file_atomically(path / "state.json", "{}");
    CHECK_THROWS_WITH_AS(load_checkpoint(path, learner), doctest::Contains("holds no \"learner\""), Error);
    CHECK_THROWS_WITH_AS(read_checkpoint(path), doctest::Contains("state.json has 2 bytes instead of"), Error);
    write_file_atomically(path / "state.json", R"({"learner":{"step":1}})");
    CHECK_THROWS_WITH_AS(load_checkpoint(path, learner), doctest::Contains("num_skipped_in_a_row"), Error);
    auto config = learner_config();
    config.intermediate_size = 64;
    Learner other(config, groups, adaptive_options());
    CHECK_THROWS_WITH_AS(load_checkpoint(path, other), doctest::Contains("mlp.gate_proj.weight has shape"), Error);
  });
}
