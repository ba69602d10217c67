// Ctrl-C as the user has it: SIGINT to the real binary, exit codes, the checkpoint, and the resume.
#include "tests/apps/program.h"

namespace troupe {

using namespace actor_tests;

TEST_CASE(
    "Ctrl-C writes a checkpoint and exits 130; the resume goes on with the next step, no sample lost or doubled") {
  TinyRun run("interrupt");
  const auto config = write_config(run, "[training]\nsteps = 8\nmax_context_length = 64\n[optimizer]\nlr = 1e-3\n");
  {
    Program program({"rl", config});
    REQUIRE(program.wait_for_line("step 3/8"));
    program.interrupt();
    CHECK(program.finish() == 130);
    INFO(program.text);
    CHECK(program.text.find("interrupted: finishing the step") != std::string::npos);
  }
  const auto before = run.journal();
  REQUIRE(before.size() >= 3);
  const auto last_step = before.back().at("step").get<int64_t>();
  CHECK(last_step < 8);
  CHECK(std::filesystem::exists(run.run_folder() / concat("checkpoints/step-", last_step) / "manifest.json"));
  {
    Program program({"rl", config});
    CHECK(program.finish() == 0);
    INFO(program.text);
    CHECK(program.text.find(concat("resuming after step ", last_step)) != std::string::npos);
  }
  const auto journal = run.journal();
  REQUIRE(journal.size() == 8);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(journal[i].at("step") == i + 1);
    CHECK(journal[i].at("groups").size() == 8);
    if (i < before.size()) CHECK((journal[i] == before[i]));
    for (size_t place = 0; place < 8; ++place) CHECK(journal[i].at("groups")[place] == i * 8 + place);
  }
  const auto fates = read_fates(run.run_folder() / "journal.jsonl");
  CHECK(fates.size() == 8 * 8 * 8);
  for (const auto& [sample, fate] : fates) CHECK(fate == "trained");
  CHECK(std::filesystem::exists(run.run_folder() / "model" / "model.safetensors"));
}

TEST_CASE("a second Ctrl-C ends the program at once, and leaves the older checkpoint as it is") {
  TinyRun run("interrupt_twice");
  // Sixteen epochs make a train step much longer than the making of its batch: the second signal comes while the step
  // that the first one lets end is still under way.
  const auto config = write_config(run, "[training]\nsteps = 8\nmax_context_length = 64\n[checkpoint]\ninterval = 1\n");
  auto text = read_file(config);
  const std::string algorithm = "[algorithm]\n", samples = "num_samples_per_prompt = 8";
  text.insert(text.find(algorithm) + algorithm.size(), "num_epochs = 16\n");
  text.replace(text.find(samples), samples.size(), "num_samples_per_prompt = 16");
  std::ofstream(config) << text;
  Program program({"rl", config});
  REQUIRE(program.wait_for_line("step 2/8"));  // a whole step after the save of step 1
  program.interrupt();
  REQUIRE(program.wait_for_line("interrupted: finishing the step"));
  program.interrupt();
  CHECK(program.finish() == 130);
  INFO(program.text);
  CHECK(program.text.find("second signal: ending at once") != std::string::npos);
  CHECK(std::filesystem::exists(run.run_folder() / "checkpoints/step-1/manifest.json"));
}

TEST_CASE("Ctrl-C before the first step is done has nothing to save and exits 130 all the same") {
  TinyRun run("interrupt_early");
  const auto config = write_config(run, "[training]\nsteps = 1000\nmax_context_length = 64\n");
  Program program({"rl", config});
  REQUIRE(program.wait_for_line("run "));
  program.interrupt();
  CHECK(program.finish() == 130);
}

}  // namespace troupe
