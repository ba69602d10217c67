// `troupe top`: what a page says, and that a run tells enough for it, live and when it is over.
#include "apps/top.h"

#include "tests/apps/program.h"

namespace troupe {
namespace {

using namespace actor_tests;
using Json = nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Json status_of_a_run() {
  return {
      {"format", 1},
      {"state", "running"},
      {"time", 1000.0},
      {"process", 77},
      {"tokens_per_second", 1234.0},
      {"idle", {{"reward", 0.9}, {"trainer", 0.25}, {"rollout 0", 0.5}}},
      {"doing", {{"trainer", {{"what", "train step"}, {"for_s", 2.25}}}}},
      {"reward_pool", {{"graders", 2}, {"asked", 5}, {"waiting", 9}}},
      {"questions", {{{"who", "trainer, step 8"}, {"whom", "shard 0 of 1"}, {"what", "train step"}, {"for_s", 2.3}}}},
      {"control",
       {{"step", 7},
        {"steps", 100},
        {"version", 7},
        {"slots", {{"taken", 12}, {"all", 16}}},
        {"samples_outstanding", 40},
        {"samples_waiting", 4},
        {"num_reissued", 3},
        {"num_given_up", 1},
        {"buffer", {{"complete", 2}, {"in_flight", 10}}},
        {"workers",
         {{{"seat", 0},
           {"version", 6},
           {"num_samples", 32},
           {"heard_s_ago", 0.5},
           {"idle", 0.125},
           {"tokens_per_second", 600.0}}}}}}};
}

}  // namespace

TEST_CASE("a page names roles, versions, slots, queues, idle shares, tokens a second, and who waits for whom") {
  const Json step{{"reward/mean", 0.5}, {"loss/mean", 0.25}, {"time_s", 65.0}, {"throughput(tps)", 900.0}};
  const auto page = apps::top_page(status_of_a_run(), step, 1001, false);
  for (const char* part :
       {"step 7 of 100   policy version 7   trained for 1:05\n", "reward 0.500", "trained tokens/s 900",
        "made tokens/s 1234",
        "slots 12 of 16 taken   samples under way 40, waiting for a worker 4, issued again 3, given up 1",
        "groups complete 2, in flight 10", "graders 2   samples asked about 5, waiting for a grader 9\n",
        "trainer       25 %  train step for 2.2 s", "reward        90 %  -",
        "rollout 0     12 %  version 6, 32 samples, 600 tokens/s, heard of 0.5 s ago",
        "    2.3 s  trainer, step 8 for shard 0 of 1 (train step)"})
    CHECK_MESSAGE(has(page, part), part, "\n", page);
  CHECK(!has(page, "no sign of life"));
  CHECK(has(apps::top_page(status_of_a_run(), step, 1012, false), "no sign of life for 12 s"));
  CHECK(has(apps::top_page(status_of_a_run(), step, 1012, true), "process 77 is gone, it was ended 12 s ago"));
  auto silent = status_of_a_run();
  silent["control"] = {{"text", "the run control does not answer: request_timeout"}};
  CHECK(has(apps::top_page(silent, Json(), 1001, false), "the run control does not answer"));
}

TEST_CASE("top looks at a run that goes on and at one that is over; a folder without one is refused") {
  TinyRun setting("top");
  const auto config = write_config(setting, "[training]\nsteps = 100000\nmax_context_length = 64\n");
  Program run({"rl", config});
  REQUIRE(run.wait_for_line("step 3/"));
  Program live({"top", "--run", setting.run_folder().string(), "--interval-s", "0.1"});
  CHECK(live.wait_for_line("trainer"));  // shares come with the second look
  CHECK(live.wait_for_line("rollout 1"));
  {
    Program top({"top", "--run", setting.run_folder().string(), "--once"});
    CHECK(top.finish() == 0);
    for (const char* part : {"of 100000   policy version ", "slots ", "rollout 0", "rollout 1", "trainer"})
      CHECK_MESSAGE(has(top.text, part), part, "\n", top.text);
  }
  run.interrupt();
  CHECK(run.finish() == 130);
  CHECK(live.finish() == 0);  // by itself
  CHECK(has(live.text, "over: interrupted"));
  Program nowhere({"top", "--run", setting.folder.path.string(), "--once"});
  CHECK(nowhere.finish() == 1);
  CHECK(has(nowhere.text, "no run has begun in this folder"));
}

}  // namespace troupe
