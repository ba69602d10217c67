// Pre-training through the same trainer, with no other actor than supervisor and data: it learns, repeats and resumes.
#include "tests/actors/tiny_run.h"

namespace troupe {
namespace {

using namespace actor_tests;

struct TinyPretraining {
  explicit TinyPretraining(const std::string& name) : folder(name) {
    write_tiny_model(folder.path / "model");
    std::ofstream text(folder.path / "text.jsonl");
    for (int i = 0; i < 64; ++i) {
      std::string document;
      for (int j = 0; j < 70; ++j) document += kLetters[(i + j * (1 + i % 2)) % 8];  // two ways through the letters
      text << nlohmann::json{{"text", document + concat(i % 10 > 5 ? "." : "!")}}.dump() << "\n";
    }
    text.close();
    topology.run.name = name;
    topology.run.folder = (folder.path / "run").string();
    topology.run.seed = 3;
    topology.run.steps = 20;
    topology.run.deterministic = true;
    topology.model = {(folder.path / "model").string(), true, ""};
    topology.data.kind = "jsonl";
    topology.data.paths = {(folder.path / "text.jsonl").string()};
    topology.data.validation_fraction = 0.2;
    topology.learner.optimizer.lr = 2e-3;
    topology.learner.schedule.total_steps = 20;
    topology.learner.max_context_length = 64;
    topology.learner.num_tokens_per_microbatch = 256;
    topology.sequence_length = 64;
    topology.num_tokens_per_train_step = 1024;
    topology.num_validation_tokens = 512;
    topology.validation_interval = 10;
    topology.checkpoint.interval = 10;
    topology.checkpoint.keep_latest_k = 0;
    topology.threads = 2;
    topology.handle_signals = false;
    topology.observer = &listener;
  }
  std::filesystem::path run_folder() const { return topology.run.folder; }

  class Losses : public Listener {
   public:
    void on_evaluation(const nlohmann::json& metrics) override { losses.push_back(metrics.at("validation/loss")); }
    std::vector<double> losses;
  };
  TemporaryFolder folder;
  PretrainTopology topology;
  Losses listener;
};

}  // namespace

TEST_CASE("pre-training learns, and resumes bit for bit in the middle of an epoch") {
  TinyPretraining first("pretrain"), resumed("pretrain_resumed");
  REQUIRE(run_pretrain(first.topology) == 0);
  CHECK(first.listener.steps.size() == 20);
  REQUIRE(first.listener.losses.size() == 3);
  CHECK(first.listener.losses[0] == doctest::Approx(std::log(16.0)).epsilon(0.1));
  CHECK(first.listener.losses[2] < 1.0);
  CHECK(first.listener.losses[2] < first.listener.losses[1]);
  const auto metrics = read_json_lines(first.run_folder() / "metrics.jsonl");
  CHECK(metrics.size() == 23);
  CHECK(first.listener.steps.back().contains("idle/trainer"));

  std::filesystem::copy(first.run_folder(), resumed.run_folder(), std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(resumed.run_folder() / "checkpoints" / "step-20");
  REQUIRE(run_pretrain(resumed.topology) == 0);
  CHECK(resumed.listener.steps.size() == 10);
  CHECK((model_bytes(resumed.run_folder() / "model") == model_bytes(first.run_folder() / "model")));
  for (size_t i = 0; i < 10; ++i)
    CHECK(resumed.listener.steps[i].at("loss/mean") == first.listener.steps[10 + i].at("loss/mean"));

  // Another run folder, started from a checkpoint of that run: with all of it, or with its weights alone.
  TinyPretraining all("pretrain_initial_all"), weights("pretrain_initial_weights");
  for (auto* run : {&all, &weights})
    run->topology.checkpoint.initial_load_path = (first.run_folder() / "checkpoints" / "step-10").string();
  all.topology.checkpoint.initial_load_model_only = false;
  REQUIRE(run_pretrain(all.topology) == 0);
  CHECK(all.listener.steps.size() == 10);
  CHECK((model_bytes(all.run_folder() / "model") == model_bytes(first.run_folder() / "model")));
  weights.topology.run.steps = 2;
  REQUIRE(run_pretrain(weights.topology) == 0);
  CHECK(weights.listener.steps.front().at("step") == 1);
  CHECK(weights.listener.losses.front() == first.listener.losses[1]);
  weights.topology.checkpoint.resume = "never";
  weights.topology.checkpoint.initial_load_path = (first.run_folder() / "model").string();
  CHECK_THROWS_WITH_AS(run_pretrain(weights.topology), doctest::Contains("checkpoint.initial_load_path"), Error);
}

TEST_CASE("pre-training on two ranks has the losses of one") {
  std::vector<std::vector<nlohmann::json>> steps;
  for (const int num_ranks : {1, 2}) {
    TinyPretraining run("pretrain_ranks");
    run.topology.mesh.shard = num_ranks;
    run.topology.run.steps = 4;
    run.topology.checkpoint.enable = false;
    run.topology.checkpoint.last_save_in_hf = false;
    REQUIRE(run_pretrain(run.topology) == 0);
    steps.push_back(run.listener.steps);
  }
  for (size_t i = 0; i < 4; ++i)
    for (const char* key : {"loss/mean", "grad_norm"})
      CHECK(steps[0][i].at(key).get<double>() == doctest::Approx(steps[1][i].at(key).get<double>()).epsilon(1e-4));
}

TEST_CASE("pre-training stops at what cannot be before any actor starts") {
  TinyPretraining run("pretrain_bad");
  run.topology.mesh.shard = 32;
  CHECK_THROWS_AS(run_pretrain(run.topology), UsageError);
  run.topology.mesh.shard = 1;
  run.topology.data.paths = {(run.folder.path / "nowhere.jsonl").string()};
  CHECK_THROWS_WITH_AS(run_pretrain(run.topology), doctest::Contains("nowhere.jsonl"), Error);
  run.topology.model.path = (run.run_folder() / "model").string();
  CHECK_THROWS_WITH_AS(run_pretrain(run.topology), doctest::Contains("model.path"), UsageError);
  CHECK_FALSE(std::filesystem::exists(run.run_folder() / "metrics.jsonl"));
}

}  // namespace troupe
