// Rewards: extraction of answers (bug cases of kind h), rules, time limits and failures.
#include "rollout/reward.h"

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "rollout/reward_kinds.h"
#include "tests/doctest.h"

using namespace troupe;

namespace {

Trajectory sample(const std::string& text, const std::string& metadata = "") {
  Trajectory trajectory;
  trajectory.completion_text = text;
  trajectory.metadata_json = metadata;
  return trajectory;
}

RewardOptions options(const std::string& kind, nlohmann::json settings = nlohmann::json::object()) {
  RewardOptions result;
  result.kind = result.name = kind;
  result.settings = std::move(settings);
  return result;
}

double score(const RewardOptions& rule, const std::string& text, const std::string& metadata = "{}") {
  auto trajectory = sample(text, metadata);
  RewardSet rewards({rule});
  rewards.score(trajectory);
  return trajectory.total_reward.value_or(-99);
}

double number(const std::string& text, const std::string& answer, bool strict = false) {
  return score(options("number", {{"strict", strict}}), text, nlohmann::json{{"answer", answer}}.dump());
}

std::string extracted(const std::string& text, bool strict = false) {
  return extract_answer(text, strict).value_or("(none)");
}

/// Waits until it is told to go on: a rule that is late for certain, without a clock.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;
  void wait() {
    std::unique_lock lock(mutex);
    opened.wait(lock, [&] { return open; });
  }
  void release() {
    std::scoped_lock lock(mutex);
    open = true;
    opened.notify_all();
  }
};
Gate& gate() {
  static auto* instance = new Gate;
  return *instance;
}

struct StuckReward : RewardFunction {
  double score(const Trajectory&, const nlohmann::json&) const override {
    gate().wait();
    return 1;
  }
};
struct NanReward : RewardFunction {
  double score(const Trajectory&, const nlohmann::json&) const override {
    return std::numeric_limits<double>::quiet_NaN();
  }
};

}  // namespace

TEST_CASE("B129 a full stop or comma that ends a clause is no part of the number") {
  CHECK(extracted("So she has 58 marbles, in the end.") == "58");
  CHECK(extracted("It is 58.") == "58");
  CHECK(extracted("It is 58, I think, and so on,") == "58");
}

TEST_CASE("B130 thousands are one number") {
  CHECK(number("\\boxed{\\$12{,}400}", "12400") == 1);
  CHECK(number("\\boxed{6,050}", "6050") == 1);
  CHECK(number("#### 1,234,567", "1234567") == 1);
  CHECK(number("about 1,234 of them", "1234") == 1);
}

TEST_CASE("B131 lists stay lists") {
  CHECK(answers_equal("(3.5,12.25)", "(3.5, 12.25)"));
  CHECK_FALSE(answers_equal("1,2", "12"));
  CHECK_FALSE(answers_equal("(1,2)", "(1,2,3)"));
}

TEST_CASE("B132 nested braces, text and cut boxes") {
  CHECK(extracted("\\boxed{\\frac{3}{4}}") == "\\frac{3}{4}");
  CHECK(number("\\boxed{\\frac{3}{4}}", "0.75") == 1);
  CHECK(number("\\boxed{-\\frac{3}{4}}", "-0.75") == 1);
  CHECK(extracted("\\boxed{\\text{C}}") == "C");
  CHECK(extracted("\\boxed{\\frac{3}{4}") == "(none)");
}

TEST_CASE("B133 the last answer counts") { CHECK(extracted("maybe \\boxed{3}, no: \\boxed{11}") == "11"); }

TEST_CASE("B134 strict mode wants the asked form") {
  CHECK(number("It could be 7 or 9", "7", true) == 0);
  CHECK(number("It could be 9 or 7", "7", false) == 1);
  CHECK(number("\\boxed{7}", "7", true) == 1);
}

TEST_CASE("B136 an answer tag") { CHECK(extracted("<answer>5</answer>") == "5"); }

TEST_CASE("usual forms of numbers") {
  CHECK(number("42", "42") == 1);
  CHECK(number("17 + 25 = 42", "42") == 1);
  CHECK(number("17 + 25 = 42.", "42") == 1);
  CHECK(number("The answer is **42**.", "42") == 1);
  CHECK(number("42.0", "42") == 1);
  CHECK(number("-7", "-7") == 1);
  CHECK(number("10-17", "17") == 1);
  CHECK(number("1/4", "0.25") == 0);  // in prose the last number counts; marked fractions are taken whole
  CHECK(number("#### 1/4", "0.25") == 1);
  CHECK(number("50%", "0.5") == 1);
  CHECK(number("", "42") == 0);
  CHECK(number("none", "42") == 0);
  CHECK(number("4 2", "42") == 0);
  CHECK(number("142", "42") == 0);
  CHECK(number("\xF0\x9F 42", "42") == 1);  // half an emoji before it
  CHECK(number("Janet has #### 18", "So 9 * 2 = 18\n#### 18") == 1);
  CHECK(number("1e400", "5") == 0);
}

TEST_CASE("rules other than numbers") {
  CHECK(score(options("exact"), " yes \n", R"({"answer":"yes"})") == 1);
  CHECK(score(options("exact"), "Yes", R"({"answer":"yes"})") == 0);
  CHECK(score(options("exact", {{"ignore_case", true}}), "Yes", R"({"answer":"yes"})") == 1);
  CHECK(score(options("exact"), "42", R"({"answer":42})") == 1);
  CHECK(score(options("regex", {{"pattern", "^-?[0-9]+$"}}), "-42") == 1);
  CHECK(score(options("regex", {{"pattern", "^-?[0-9]+$"}}), "42!") == 0);
  CHECK(score(options("regex", {{"pattern", "x=([0-9]+)"}, {"answer_field", "answer"}}), "x=7", R"({"answer":"7"})") ==
        1);
  CHECK(score(options("length", {{"unit", "characters"}, {"limit", 3}, {"slope", -0.5}}), "12345") ==
        doctest::Approx(-1));
}

TEST_CASE("wrong settings name the key and what is near") {
  CHECK_THROWS_WITH_AS(make_reward_function(options("nummer")),
                       doctest::Contains("known: environment, exact, length, model, number, regex, remote"),
                       UsageError);
  CHECK_THROWS_WITH_AS(make_reward_function(options("number", {{"strikt", true}})),
                       doctest::Contains("did you mean strict"), UsageError);
  CHECK_THROWS_WITH_AS(make_reward_function(options("number", {{"strict", "yes"}})), doctest::Contains("wrong type"),
                       UsageError);
  CHECK_THROWS_WITH_AS(make_reward_function(options("regex")), doctest::Contains("needs a pattern"), UsageError);
  CHECK_THROWS_WITH_AS(make_reward_function(options("regex", {{"pattern", "("}})), doctest::Contains("("), UsageError);
  CHECK_THROWS_AS(make_reward_function(options("length", {{"unit", "words"}})), UsageError);
}

TEST_CASE("every kind states its keys with defaults that fit, and makes a rule from what it needs") {
  const nlohmann::json needed = {{"regex", {{"pattern", "x"}}},
                                 {"model", {{"path", TROUPE_SOURCE_DIR "/tests/fixtures/models/llama-reward"}}},
                                 {"remote", {{"address", "tcp://127.0.0.1:1"}}}};
  std::vector<std::string> names;
  for (const auto& kind : built_in_reward_kinds()) {
    names.push_back(kind.name);
    CAPTURE(kind.name);
    CHECK_FALSE(kind.help.empty());
    auto settings = needed.value(kind.name, nlohmann::json::object());
    CHECK(make_reward_function(options(kind.name, settings)) != nullptr);
    for (const auto& key : kind.keys) {
      CAPTURE(key.name);
      CHECK_FALSE(key.help.empty());
      auto wrong = settings;
      wrong[key.name] = nlohmann::json::array();
      CHECK_THROWS_WITH_AS(make_reward_function(options(kind.name, wrong)), doctest::Contains(key.name.c_str()),
                           UsageError);
      settings.emplace(key.name, key.default_value);
    }
    CHECK(make_reward_function(options(kind.name, settings)) != nullptr);  // the defaults written out
  }
  CHECK(names == std::vector<std::string>{"environment", "exact", "length", "model", "number", "regex", "remote"});
}

TEST_CASE("B125 a reward that fails is left out, never a silent 0") {
  register_reward_kind("test-nan", [](const RewardOptions&) -> std::unique_ptr<RewardFunction> {
    return std::make_unique<NanReward>();
  });
  auto number_rule = options("number");
  number_rule.weight = 2;
  RewardSet rewards({number_rule, options("test-nan")});
  auto good = sample("42", R"({"answer":"42"})");
  rewards.score(good);
  CHECK(good.total_reward == 2.0);
  CHECK(good.rewards[0] == RewardValue{"number", 1.0, ""});
  CHECK_FALSE(good.rewards[1].value);
  CHECK(good.rewards[1].failure.find("nan") != std::string::npos);
  auto no_answer = sample("42", "{}");
  rewards.score(no_answer);
  CHECK_FALSE(no_answer.total_reward);
  CHECK(no_answer.rewards[0].failure.find("\"answer\"") != std::string::npos);
  auto broken = sample("42", "[1");
  rewards.score(broken);
  CHECK_FALSE(broken.total_reward);
  CHECK(rewards.num_failures() == 5);
}

TEST_CASE("a function of weight 0 is watched: its value is there, and makes no reward where the others failed") {
  auto watched = options("number");
  watched.name = "watched";
  watched.weight = 0;
  auto counted = options("exact");
  counted.settings = {{"answer_field", "gold"}};
  RewardSet rewards({counted, watched});
  auto both = sample("42", R"({"answer":"42","gold":"42"})");
  rewards.score(both);
  CHECK(both.total_reward == 1.0);
  CHECK(both.rewards[1].value == 1.0);
  auto failed = sample("42", R"({"answer":"42"})");
  rewards.score(failed);
  CHECK_FALSE(failed.total_reward);
  CHECK(failed.rewards[1].value == 1.0);
}

TEST_CASE("environment: the sum that the environment gave, none without one") {
  RewardSet rewards({options("environment")});
  auto given = sample("x", "{}");
  given.environment_reward = -0.5;
  rewards.score(given);
  CHECK(given.total_reward == -0.5);
  auto alone = sample("x", "{}");
  rewards.score(alone);
  CHECK_FALSE(alone.total_reward);
  CHECK(alone.rewards[0].failure.find("no environment") != std::string::npos);
}

TEST_CASE("a rule that never answers costs its time limit, and is not asked while too many calls are stuck") {
  register_reward_kind("test-stuck", [](const RewardOptions&) -> std::unique_ptr<RewardFunction> {
    return std::make_unique<StuckReward>();
  });
  auto stuck = options("test-stuck");
  stuck.timeout_s = 0.001;
  RewardSet rewards({stuck, options("number")});
  // A thread that had not even begun when its time was over is no stuck one: on a busy machine it takes some calls
  // more.
  int num_calls = 0;
  for (bool is_refused = false; !is_refused && num_calls < 1000; ++num_calls) {
    auto trajectory = sample("42", R"({"answer":"42"})");
    rewards.score(trajectory);
    CHECK(trajectory.total_reward == 1.0);
    const auto& failure = trajectory.rewards[0].failure;
    is_refused = failure.find("8 calls went over the limit of 0.001 s and have not come back") != std::string::npos;
    CHECK((is_refused || failure == "time limit of 0.001 s"));
  }
  CHECK(num_calls > 8);
  CHECK(num_calls < 1000);
  CHECK(rewards.num_failures() == num_calls);
  // Eight slow calls in a long run are no verdict: once they are back, the rule is asked again.
  gate().release();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool is_back = false;
  while (!is_back && std::chrono::steady_clock::now() < give_up) {
    auto trajectory = sample("42", R"({"answer":"42"})");
    rewards.score(trajectory);
    is_back = trajectory.rewards[0].value.has_value();
  }
  CHECK(is_back);
}

TEST_CASE("a regular expression that backtracks without end is a failure, not a hang") {
  std::string text(5000, 'a');
  text += "!";
  auto trajectory = sample(text, "{}");
  RewardSet rewards({options("regex", {{"pattern", "^(a+)+$"}})});
  rewards.score(trajectory);
  CHECK(trajectory.total_reward.value_or(0) == 0);
}

TEST_CASE("near names") {
  CHECK(nearest_name("stpes", {"steps", "stop"}) == "steps");
  CHECK(nearest_name("xyzzy", {"steps", "stop"}) == "");
  CHECK(join({"a", "b"}, ", ") == "a, b");
  CHECK(trim(" \t a b\n") == "a b");
}
