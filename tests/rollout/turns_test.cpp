// Samples of several turns: what the policy sampled stays as it was sampled, what the environment says is given.
#include "rollout/turns.h"

#include <atomic>
#include <thread>

#include "rollout/calculator.h"
#include "tests/rollout/scripted_model.h"

namespace troupe::engine_tests {
namespace {

/// Encodes by the longest piece that fits.
class GreedyTokenizer final : public Tokenizer {
 public:
  explicit GreedyTokenizer(std::vector<std::string> pieces, std::set<int32_t> special = {})
      : pieces_(pieces), tokenizer_(std::move(pieces), std::move(special)) {}
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      int32_t best = -1;
      for (size_t i = 0; i < pieces_.size(); ++i)
        if (text.starts_with(pieces_[i]) && (best < 0 || pieces_[i].size() > pieces_[best].size()))
          best = static_cast<int32_t>(i);
      require(best >= 0, "no piece for ", text);
      ids.push_back(best);
      text.remove_prefix(pieces_[best].size());
    }
    return ids;
  }
  std::string decode(const std::vector<int32_t>& ids, bool skip) const override { return tokenizer_.decode(ids, skip); }
  int64_t vocab_size() const override { return tokenizer_.vocab_size(); }
  int32_t token_id(std::string_view token) const override { return tokenizer_.token_id(token); }
  bool is_special(int32_t id) const override { return tokenizer_.is_special(id); }
  std::string token_bytes(int32_t id) const override { return tokenizer_.token_bytes(id); }

 private:
  std::vector<std::string> pieces_;
  PieceTokenizer tokenizer_;
};

/// What the test of the moment makes of a turn.
std::function<TurnAnswer(const Turn&)> behave;

class TestEnvironment : public Environment {
 public:
  TurnAnswer step(const Turn& turn) const override { return behave(turn); }
};

EnvironmentOptions test_environment(int max_turns = 8, double timeout_s = 20) {
  static const bool once = [] {
    register_environment_kind("test", [](const EnvironmentOptions&) -> std::unique_ptr<Environment> {
      return std::make_unique<TestEnvironment>();
    });
    return true;
  }();
  CHECK(once);
  EnvironmentOptions options;
  options.kind = "test";
  options.max_turns = max_turns;
  options.timeout_s = timeout_s;
  return options;
}

TurnAnswer reply(const std::string& text, double reward = 0) { return {{{"tool", text}}, reward, false}; }
TurnAnswer end(double reward) { return {{}, reward, true}; }

/// <p> wa ter <end> | what the environment says: R | done <end>
struct Water {
  GreedyTokenizer tokenizer{{"<p>", "wa", "ter", "water", "<end>", "R", "done"}, {4}};
  EngineOptions options = small_options();

  Trajectory play(const EnvironmentOptions& environment) {
    const auto config = scripted_config(7);
    TurnEngine engine(config, options, &tokenizer, {environment, "", {}});
    engine.set_weights(pack_model(config, scripted_weights(1, {1, 2, 4, 4, 4, 6, 4}), at::kFloat, 1));
    auto request = make_request(make_sample_id(3, 1), {0}, 1.0, 20);
    request.sampling.stop_token_ids = {4};
    request.metadata_json = R"({"answer":7})";
    auto made = generate_all(engine, {request});
    REQUIRE(made.size() == 1);
    CHECK(engine.idle());
    check_trajectory(made[0]);
    return made[0];
  }
};

}  // namespace

TEST_CASE("B033 sampled tokens stay as they were sampled, whatever their text would be cut into") {
  std::vector<Turn> seen;
  behave = [&](const Turn& turn) {
    seen.push_back(turn);
    return turn.number == 1 ? reply("R", 0.25) : end(1);
  };
  const auto made = Water().play(test_environment());
  CHECK(made.tokens == std::vector<int32_t>{0, 1, 2, 4, 5, 6, 4});
  CHECK(made.loss_mask == std::vector<uint8_t>{0, 1, 1, 1, 0, 1, 1});
  CHECK((made.versions == std::vector<VersionRun>{{1, 1}}));
  CHECK(made.prompt_length == 1);
  CHECK(made.num_turns == 2);
  CHECK(made.finish_reason == FinishReason::kEnvironment);
  CHECK(made.completion_text == "done");
  CHECK(made.environment_reward == 1.25);
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].text == "water");
  CHECK(seen[0].metadata.at("answer") == 7);
  CHECK(seen[1].number == 2);
}

TEST_CASE("a sample ends where its turns, its room or a turn's length do") {
  behave = [](const Turn&) { return reply("R"); };
  const auto turns = Water().play(test_environment(2));
  CHECK(turns.finish_reason == FinishReason::kLength);
  CHECK(turns.num_turns == 2);
  CHECK(turns.tokens.back() == 4);  // nothing is said behind the last turn
  Water narrow;
  narrow.options.max_context_length = 8;
  const auto room = narrow.play(test_environment());
  CHECK(room.finish_reason == FinishReason::kLength);
  CHECK(room.tokens == std::vector<int32_t>{0, 1, 2, 4, 5, 6, 4});
  narrow.options.max_context_length = 3;
  behave = [](const Turn&) -> TurnAnswer { fail("nobody was to be asked"); };
  const auto cut = narrow.play(test_environment());
  CHECK(cut.finish_reason == FinishReason::kLength);
  CHECK_FALSE(cut.environment_reward.has_value());
}

TEST_CASE("an environment that throws, gives NaN, says nothing or hangs costs the attempt, with the reason") {
  const auto text = [](const EnvironmentOptions& options) {
    const auto made = Water().play(options);
    CHECK(made.finish_reason == FinishReason::kError);
    return made.completion_text;
  };
  behave = [](const Turn&) -> TurnAnswer { fail("the door is locked"); };
  CHECK(text(test_environment()) == "environment, turn 1: the door is locked");
  behave = [](const Turn& turn) { return turn.number == 1 ? reply("R") : end(std::nan("")); };
  CHECK(text(test_environment()) == "environment, turn 2: the reward is nan");
  behave = [](const Turn&) { return TurnAnswer{}; };
  CHECK(text(test_environment()).starts_with("environment, turn 1: the answer holds no text"));
  std::atomic<bool> may_end{false}, has_ended{false};
  behave = [&](const Turn&) {
    while (!may_end) std::this_thread::yield();
    has_ended = true;
    return reply("R");
  };
  CHECK(text(test_environment(8, 0.05)) == "environment, turn 1: no answer within 0.05 s");
  may_end = true;
  while (!has_ended) std::this_thread::yield();
}

TEST_CASE("log-probs of every turn are those of a model that reads the whole sample") {
  const auto config = small_config();
  const auto weights = random_weights(config, 1, 3);
  std::vector<std::string> pieces;
  for (int i = 0; i < 131; ++i)
    pieces.push_back(std::string(1, static_cast<char>(i < 96 ? ' ' + i : 'a')) + std::to_string(i));
  const GreedyTokenizer tokenizer(pieces);
  behave = [&](const Turn& turn) {
    return turn.number == 3 ? end(0) : reply(pieces[10 + turn.sample_id % 5] + pieces[40] + pieces[41]);
  };
  TurnEngine engine(config, small_options(), &tokenizer, {test_environment(), "", {}});
  engine.set_weights(pack_model(config, weights, at::kFloat, 1));
  auto requests = make_requests(3, 4, 1.0, 40);
  for (auto& request : requests)
    for (int64_t id = 0; id < 131; id += 4) request.sampling.stop_token_ids.push_back(id);
  int num_full = 0;
  for (const auto& made : generate_all(engine, requests)) {
    check_trajectory(made);
    num_full += made.num_turns == 3;
    const auto log_probs = at::log_softmax(reference_logits(config, weights, made.tokens), -1);
    for (size_t t = 1; t < made.tokens.size(); ++t) {
      if (made.loss_mask[t] == 0) continue;
      CHECK(std::abs(made.log_probs[t] - log_probs[t - 1][made.tokens[t]].item<double>()) < 5e-5);
    }
  }
  CHECK(num_full > 6);
  CHECK(engine.metrics().prefill_tokens_saved > 0);  // the turns before are still in the cache
}

TEST_CASE("between two turns stands what the template says, and the end of a turn only once") {
  const std::string chat =
      "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";
  std::vector<std::string> pieces{"<|start|>", "<|end|>", "\n"};
  for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c);
  const GreedyTokenizer tokenizer(pieces, {0, 1});
  const TurnText text(tokenizer, chat, nlohmann::json::object());
  const auto after_end = tokenizer.decode(text.tokens(1, {{"tool", "yes"}}), false);
  CHECK(after_end == "\n<|start|>tool\nyes<|end|>\n<|start|>assistant\n");
  const auto after_word = tokenizer.decode(text.tokens(5, {{"tool", "yes"}, {"user", "on"}}), false);
  CHECK(after_word == "<|end|>\n<|start|>tool\nyes<|end|>\n<|start|>user\non<|end|>\n<|start|>assistant\n");
  const TurnText strict(tokenizer, "{{ raise_exception('only users') }}", nlohmann::json::object());
  CHECK_THROWS_WITH_AS(strict.tokens(1, {}), doctest::Contains("only users"), Error);
}

TEST_CASE("the calculator works out calls, tells mistakes, and ends where nobody asks") {
  CHECK(calculate("12*34") == "408");
  CHECK(calculate(" (1 + 2) * -3 / 8 ") == "-1.125");
  CHECK(calculate("2-3-4") == "-5");
  CHECK(calculate("987654*98765") == "97545647310");
  for (const char* wrong : {"", "1+", "(1", "1 2", "a", "1/0", "1.2.3"}) CHECK_THROWS_AS(calculate(wrong), Error);
  CHECK_THROWS_AS(calculate(std::string(5000, '(')), Error);
  CHECK(find_call("so calc(1) and calc((2+3)*4) it is") == "(2+3)*4");
  CHECK_FALSE(find_call("calc(1"));
  CHECK_FALSE(find_call("1+1"));
  const auto calculator = make_calculator();
  const auto answered = calculator->step({0, 0, 1, "calc(6*7)", {}});
  CHECK_FALSE(answered.done);
  CHECK((answered.messages == std::vector<std::pair<std::string, std::string>>{{"tool", "42"}}));
  CHECK(calculator->step({0, 0, 1, "calc(6/0)", {}}).messages.at(0).second == "error: division by zero");
  CHECK(calculator->step({0, 0, 2, "It is 42.", {}}).done);
}

TEST_CASE("environments that are not known, or lack an address, are the user's mistake") {
  EnvironmentOptions options;
  CHECK(make_environment(options) == nullptr);
  options.kind = "calculater";
  CHECK_THROWS_WITH_AS(make_environment(options), doctest::Contains("known: calculator, remote"), UsageError);
  options.kind = "remote";
  CHECK_THROWS_WITH_AS(make_environment(options), doctest::Contains("needs an address"), UsageError);
  options.remote.address = "localhost:5";
  CHECK_THROWS_WITH_AS(make_environment(options), doctest::Contains("neither tcp://HOST:PORT"), UsageError);
}

}  // namespace troupe::engine_tests
