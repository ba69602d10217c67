// Who is let in, and what a worker is told.
#include "actors/join.h"

#include "actors/remote_judge.h"
#include "actors/topology.h"
#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {

TEST_CASE("a worker is let in by protocol, token, build, model and heartbeat, and told which of them is wrong") {
  const JoinRules rules{"1.2", "sesame", "abc", 10};
  const Hello good{kJoinProtocol, "1.2", "sesame", "host:1", "", 1, 4};
  CHECK(refusal(good, rules).empty());
  auto hello = good;
  hello.model = "abc";
  CHECK(refusal(hello, rules).empty());
  hello.model = "abd";
  CHECK(refusal(hello, rules).find("another model") != std::string::npos);
  hello = good;
  hello.protocol = kJoinProtocol + 1;
  CHECK(refusal(hello, rules).find("protocol") != std::string::npos);
  hello = good;
  hello.build = "1.3";
  CHECK(refusal(hello, rules) == "its build is 1.3, the run's 1.2");
  hello = good;
  hello.heartbeat_s = 6;
  CHECK(refusal(hello, rules).find("heartbeat") != std::string::npos);
  for (const char* token : {"sesam", "sesamE", "sesame ", "xsesame"}) {
    hello = good;
    hello.token = token;
    CHECK(refusal(hello, rules) == "wrong token");
  }
  hello.token = "";
  CHECK(refusal(hello, rules).find("no token") != std::string::npos);
  CHECK(refusal(hello, {"1.2", "", "abc", 10}).empty());
}

TEST_CASE("a worker plays a role that there is, and grades only where the rules are placed in workers") {
  JoinRules rules{"1.2", "", "abc", 10};
  Hello hello{kJoinProtocol, "1.2", "", "host:1", "", 1, 4};
  CHECK(hello.role == "rollout");
  hello.role = "pilot";
  CHECK(refusal(hello, rules) == "there is no role pilot");
  hello.role = "";
  CHECK(refusal(hello, rules) == "there is no role ");
  hello.role = "reward";
  CHECK(refusal(hello, rules).find("the run's reward is in its own process") != std::string::npos);
  rules.roles_elsewhere = {"reward"};
  CHECK(refusal(hello, rules).empty());
  hello.role = "rollout";
  CHECK(refusal(hello, rules).empty());
}

TEST_CASE("a judge's settings arrive as they were; what is missing is named") {
  const JudgeSettings settings{"r", "run.name = \"ä\"\n", "/runs/r", "/runs/r/checkpoints/step-4", "abc", "float32",
                               3.5};
  const auto json = nlohmann::json::parse(to_json(settings).dump());
  CHECK((parse_judge_settings(json) == settings));
  for (const auto& [key, value] : json.items()) {
    auto lacking = json;
    lacking.erase(key);
    CHECK_THROWS_WITH_AS(parse_judge_settings(lacking), doctest::Contains(key.c_str()), Error);
  }
}

TEST_CASE("a grader's settings arrive as they were; what is missing is named") {
  GraderSettings settings{"r", {}, 3.5};
  settings.rewards.push_back({"number", "answers", -0.25, 1.5, {{"strict", true}, {"answer_field", "ä \" \n"}}});
  settings.rewards.push_back({"remote", "python", 1e-300, 1e6, {{"command", "python3 score.py"}, {"num_parallel", 3}}});
  const auto json = to_json(settings);
  const auto copy = parse_grader_settings(nlohmann::json::parse(json.dump()));
  CHECK(to_json(copy) == json);
  CHECK(copy.run == "r");
  CHECK(copy.lost_after_s == 3.5);
  REQUIRE(copy.rewards.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(copy.rewards[i].kind == settings.rewards[i].kind);
    CHECK(copy.rewards[i].name == settings.rewards[i].name);
    CHECK(copy.rewards[i].weight == settings.rewards[i].weight);
    CHECK(copy.rewards[i].timeout_s == settings.rewards[i].timeout_s);
    CHECK(copy.rewards[i].settings == settings.rewards[i].settings);
  }
  CHECK(parse_grader_settings(to_json(GraderSettings{})).rewards.empty());
  for (const char* field : {"run", "rewards", "lost_after_s"}) {
    auto broken = json;
    broken.erase(field);
    CHECK_THROWS_WITH_AS(parse_grader_settings(broken), doctest::Contains(field), Error);
  }
  for (const char* field : {"kind", "name", "weight", "timeout_s", "settings"}) {
    auto broken = json;
    broken["rewards"][1].erase(field);
    CHECK_THROWS_WITH_AS(parse_grader_settings(broken), doctest::Contains(field), Error);
  }
}

TEST_CASE("a worker's settings arrive as they were; what is missing is named") {
  WorkerSettings settings;
  settings.run = "r";
  settings.model_config = {{"model_type", "llama"}};
  settings.engine = {7, 11, 13, 17, 19, 23, OnWeights::kFinish, true, 29, 0xfedcba9876543210, 1};
  settings.sampling = {0.5, 0.75, 3, 0.125, 31, {"stop", "ä"}, {1, 2}};
  settings.baseline_index = 4;
  settings.credit = 12;
  settings.score_limit_s = 2.5;
  settings.lost_after_s = 3.5;
  settings.dtype = "bfloat16";
  const auto json = to_json(settings);
  const auto copy = parse_worker_settings(nlohmann::json::parse(json.dump()));
  CHECK(to_json(copy) == json);
  CHECK(copy.engine.seed == 0xfedcba9876543210);
  CHECK(copy.engine.on_weights == OnWeights::kFinish);
  CHECK(copy.sampling.stop == settings.sampling.stop);
  auto broken = json;
  broken["engine"].erase("seed");
  CHECK_THROWS_WITH_AS(parse_worker_settings(broken), doctest::Contains("seed"), Error);
  broken = json;
  broken["engine"]["on_weights"] = 3;
  CHECK_THROWS_WITH_AS(parse_worker_settings(broken), doctest::Contains("on_weights"), Error);
}

TEST_CASE("only this machine reaches a loopback address") {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) CHECK(is_loopback(address));
  for (const char* address : {"0.0.0.0", "10.0.0.1", "::", "", "1270.0.0.1", "example.com"})
    CHECK_FALSE(is_loopback(address));
}

}  // namespace troupe
