// What the subcommands of the trainer alone make of a configuration.
#include "apps/build_topology.h"
#include "base/error.h"
#include "tests/doctest.h"

using namespace troupe;
using troupe::apps::Config;

namespace {

Config config_of(const std::string& more) {
  return Config::from_text("[model]\npath = \"configs/models/shakespeare-llama\"\n" + more, "test.toml", {});
}

std::string refusal(PretrainTopology (*build)(const Config&), const std::string& more) {
  try {
    build(config_of(more));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kPaths = "[data]\npaths = [\"configs/data/sort-preferences.jsonl\"]\n";

}  // namespace

TEST_CASE("sft, reward-model and dpo differ by objective and share the rest") {
  const std::string common = kPaths + "prompt_field = \"question\"\n[training]\nmax_context_length = 64\nsteps = 7\n";
  const auto sft = apps::build_sft_topology(config_of(common + "[lr_scheduler]\nwarmup_steps = 3\n"));
  CHECK(sft.objective == TrainObjective::kChat);
  CHECK(sft.data.chat.prompt_field == "question");
  CHECK(sft.data.chat.turns == AssistantTurns::kAll);
  CHECK(sft.sequence_length == 64);
  CHECK(sft.learner.schedule.total_steps == 7);
  CHECK(sft.learner.schedule.warmup_steps == 3);
  const auto reward = apps::build_reward_model_topology(
      config_of(common + "[preference]\ncenter = 0.1\nnum_pairs_per_train_step = 5\n"));
  CHECK(reward.objective == TrainObjective::kPreference);
  CHECK(reward.model.is_reward_model);
  CHECK(reward.learner.preference.loss == "bradley-terry");
  CHECK(reward.learner.preference.center == 0.1);
  CHECK(reward.num_pairs_per_train_step == 5);
  const auto dpo = apps::build_dpo_topology(
      config_of(common + "[preference]\nloss = \"ipo\"\nbeta = 0.2\n[reference]\npath = \"configs\"\n"));
  CHECK(dpo.objective == TrainObjective::kPreference);
  CHECK_FALSE(dpo.model.is_reward_model);
  CHECK(dpo.learner.preference.loss == "ipo");
  CHECK(dpo.learner.preference.beta == 0.2);
  CHECK(dpo.reference.path == "configs");
  CHECK(apps::build_dpo_topology(config_of(common)).reference.path == dpo.model.path);
}

TEST_CASE("what these subcommands cannot take stops with the key") {
  CHECK(mentions(refusal(&apps::build_sft_topology, kPaths + "kind = \"preference\"\n"), "data.kind"));
  CHECK(mentions(refusal(&apps::build_dpo_topology, kPaths + "kind = \"chat\"\n"), "data.kind"));
  CHECK(mentions(refusal(&apps::build_pretrain_topology, kPaths + "kind = \"arithmetic\"\n"), "data.kind"));
  CHECK(mentions(refusal(&apps::build_sft_topology, ""), "data.paths"));
  for (auto* build : {&apps::build_pretrain_topology, &apps::build_sft_topology, &apps::build_reward_model_topology,
                      &apps::build_dpo_topology})
    CHECK(mentions(refusal(build, kPaths + "[[topology.place]]\nrole = \"reward\"\n"), "[[topology.place]]"));
  CHECK(mentions(refusal(&apps::build_dpo_topology, kPaths + "[preference]\ncenter = 0.1\n"), "preference.center"));
  CHECK(mentions(refusal(&apps::build_dpo_topology, kPaths + "[preference]\nloss = \"ipo\"\nlabel_smoothing = 0.1\n"),
                 "label_smoothing"));
  CHECK(mentions(refusal(&apps::build_dpo_topology, kPaths + "[preference]\nbeta = 0\n"), "preference.beta"));
  CHECK(mentions(refusal(&apps::build_dpo_topology, kPaths + "[reference]\npath = \"/nowhere\"\n"), "reference.path"));
}
