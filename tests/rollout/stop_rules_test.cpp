// When a completion ends and what its text is: end ids, stop strings wherever tokens divide them, limits.
#include "rollout/reward.h"
#include "tests/rollout/scripted_model.h"

namespace troupe::engine_tests {
namespace {

struct Script {
  std::vector<std::string> pieces;  // token i is followed by token i + 1, the last by itself
  size_t prompt_length = 1;
  std::vector<std::string> stop = {};
  std::vector<int64_t> stop_token_ids = {};
  int32_t max_new_tokens = 20;
  std::set<int32_t> special = {};
  size_t leading_spaces = 0;
};

Trajectory play(const Script& script, const EngineOptions& options = small_options()) {
  const auto size = static_cast<int32_t>(script.pieces.size());
  std::vector<int32_t> successors, prompt;
  for (int32_t i = 0; i < size; ++i) successors.push_back(std::min(i + 1, size - 1));
  for (size_t i = 0; i < script.prompt_length; ++i) prompt.push_back(static_cast<int32_t>(i));
  const PieceTokenizer tokenizer(script.pieces, script.special, script.leading_spaces);
  Engine engine(scripted_config(size), options, &tokenizer);
  engine.set_weights(pack_model(scripted_config(size), scripted_weights(1, successors), at::kFloat, 1));
  GenerationRequest request = make_request(make_sample_id(3, 1), prompt, 1.0, script.max_new_tokens);
  request.sampling.stop = script.stop;
  request.sampling.stop_token_ids = script.stop_token_ids;
  const Trajectory trajectory = generate_all(engine, {request}).at(0);
  check_trajectory(trajectory);
  for (size_t t = 1; t < trajectory.tokens.size(); ++t)
    REQUIRE(trajectory.tokens[t] == successors[trajectory.tokens[t - 1]]);
  return trajectory;
}

void check_end(const Trajectory& trajectory, FinishReason reason, int64_t num_sampled, const std::string& text) {
  CHECK(trajectory.finish_reason == reason);
  CHECK(trajectory.num_sampled_tokens() == num_sampled);  // mask 1 on each, the last ones included
  CHECK(trajectory.completion_text == text);
}

TEST_CASE("a stop string is found inside a token, at its end, and across any number of tokens") {
  check_end(play({{"<p>", "say ", "aENDb", "x"}, 1, {"END"}}), FinishReason::kStopString, 2, "say a");
  check_end(play({{"<p>", "say ", "aEND", "x"}, 1, {"END"}}), FinishReason::kStopString, 2, "say a");
  check_end(play({{"<p>", "Hel", "lo wo", "rld", "!"}, 1, {"lo wor"}}), FinishReason::kStopString, 3, "Hel");
  check_end(play({{"<p>", "a", "E", "N", "D", "x"}, 1, {"END"}}), FinishReason::kStopString, 4, "a");
  check_end(play({{"<p>", "a", "a", "a", "b", "x"}, 1, {"aab"}}), FinishReason::kStopString, 4, "a");
  check_end(play({{"<p>", "E", "N", "", "D", "x"}, 1, {"END"}}), FinishReason::kStopString, 4, "");
}

TEST_CASE("a stop string counts by bytes: inside characters that several tokens make") {
  check_end(play({{"<p>", "caf", "\xC3", "\xA9", "x"}, 1, {"é"}}), FinishReason::kStopString, 3, "caf");
  // The end of one character is not the end of another.
  check_end(play({{"<p>", "\xC3", "\xA9", "\xC2", "\xA9", "x"}, 1, {"©"}}), FinishReason::kStopString, 4, "é");
  // It ends in the middle of a token whose other half begins a character.
  check_end(play({{"<p>", "ok", ".\n\xF0\x9F", "\x98\x80", "x"}, 1, {".\n"}}), FinishReason::kStopString, 2, "ok");
  // A character that is cut off is U+FFFD; ids and mask keep the token.
  check_end(play({{"<p>", "caf", "\xC3", "x"}, 1, {}, {}, 2}), FinishReason::kLength, 2, "caf\xEF\xBF\xBD");
  check_end(play({{"<p>", "\xC3", "END", "x"}, 1, {"END"}}), FinishReason::kStopString, 2, "\xEF\xBF\xBD");
}

TEST_CASE("the prompt takes no part in a stop string") {
  check_end(play({{"ST", "OP", "x", "y"}, 2, {"STOP"}, {}, 2}), FinishReason::kLength, 2, "xy");
  check_end(play({{"<p>STO", "P", "x", "y"}, 1, {"STOP"}, {}, 3}), FinishReason::kLength, 3, "Pxy");
}

TEST_CASE("of several stop strings the first in the text cuts it") {
  for (const auto& stop : {std::vector<std::string>{"c", "ab"}, {"ab", "c"}}) {
    check_end(play({{"<p>", "abc", "x"}, 1, stop}), FinishReason::kStopString, 1, "");
  }
  check_end(play({{"<p>", "x", "abc", "y"}, 1, {"bc", "abc", "zzzzzzzzzzzz"}}), FinishReason::kStopString, 2, "x");
  check_end(play({{"<p>", "one\n", "\n", "two"}, 1, {"\n\n", "two"}}), FinishReason::kStopString, 2, "one");
}

TEST_CASE("special tokens are no text: a stop string passes over them and is not found in them") {
  check_end(play({{"<p>", "a", "<x>", "b", "y"}, 1, {"ab"}, {}, 9, {2}}), FinishReason::kStopString, 3, "");
  check_end(play({{"<p>", "a", "<x>", "b"}, 1, {"<x>"}, {}, 3, {2}}), FinishReason::kLength, 3, "ab");
}

TEST_CASE("the text is cut where a stop string begins with the space that decoding takes away") {
  check_end(play({{"<p>", " foo", " bar", "x"}, 1, {" bar"}, {}, 9, {}, 1}), FinishReason::kStopString, 2, "foo");
  check_end(play({{"<p>", " foo", " bar", "x"}, 1, {" foo"}, {}, 9, {}, 1}), FinishReason::kStopString, 1, "");
  check_end(play({{"<p>", " foo", " bar", "x"}, 1, {"o b"}, {}, 9, {}, 1}), FinishReason::kStopString, 2, "fo");
}

TEST_CASE("B029 any of several end ids ends a completion; text leaves it out, ids and mask keep it") {
  const Script script{{"<p>", "a", "b", "</s>", "c", "<end>", "d"}, 1, {}, {5, 3}};
  const Trajectory first = play(script);
  check_end(first, FinishReason::kStop, 3, "ab");
  CHECK(first.tokens.back() == 3);
  CHECK(first.loss_mask.back() == 1);
  check_end(play({{"<p>", "a", "b", "</s>", "c", "<end>", "d"}, 1, {}, {5}}), FinishReason::kStop, 5, "ab</s>c");
  // Ids of the prompt do not end it; an end id comes before a stop string that it would complete.
  check_end(play({{"</s>", "</s>", "a", "b"}, 2, {}, {0, 1}, 2}), FinishReason::kLength, 2, "ab");
  check_end(play({{"<p>", "a", "b", "x"}, 1, {"ab"}, {2}}), FinishReason::kStop, 2, "a");
}

TEST_CASE("B040 an end id in the prompt does not finish a completion") {
  // What a learner leaves out as over-long is judged by this reason alone (tests/training/loss_denominators_test.cpp).
  const std::vector<std::string> pieces = {"<p>", "</s>", "a", "b", "c"};
  const PieceTokenizer tokenizer(pieces);
  Engine engine(scripted_config(5), small_options(), &tokenizer);
  engine.set_weights(pack_model(scripted_config(5), scripted_weights(1, {2, 2, 3, 4, 1}), at::kFloat, 1));
  GenerationRequest cut = make_request(1, {0, 1}, 1.0, 2), ended = make_request(2, {0, 1}, 1.0, 9);
  cut.sampling.stop_token_ids = ended.sampling.stop_token_ids = {1};
  const auto trajectories = generate_all(engine, {cut, ended});
  check_end(trajectories[0], FinishReason::kLength, 2, "ab");
  check_end(trajectories[1], FinishReason::kStop, 4, "abc");
  CHECK((trajectories[1].tokens == std::vector<int32_t>{0, 1, 2, 3, 4, 1}));
}

TEST_CASE("B136 rewards are given the text before the end id: format 1, answer 5") {
  const Trajectory trajectory = play({{"<p>", "<answer>5", "</answer>", "</s>", "junk 9"}, 1, {}, {3}});
  check_end(trajectory, FinishReason::kStop, 3, "<answer>5</answer>");
  RewardOptions format, number;
  format.kind = "regex";
  format.settings = {{"pattern", R"(^<answer>\d+</answer>$)"}};
  number.kind = "number";
  const nlohmann::json record = {{"answer", 5}};
  CHECK(make_reward_function(format)->score(trajectory, record) == 1);
  CHECK(make_reward_function(number)->score(trajectory, record) == 1);
}

TEST_CASE("B025 B026 an end id in prompt or completion takes nothing off the mask") {
  std::vector<int32_t> successors(10, 0);
  successors[5] = 8;
  successors[8] = 9;
  successors[9] = 2;
  successors[2] = 5;
  Engine engine(scripted_config(10), small_options(), nullptr);
  engine.set_weights(pack_model(scripted_config(10), scripted_weights(1, successors), at::kFloat, 1));
  GenerationRequest ending = make_request(1, {2, 5}, 1.0, 20), going_on = make_request(2, {2, 5}, 1.0, 6);
  ending.sampling.stop_token_ids = {2};
  const auto trajectories = generate_all(engine, {ending, going_on});
  CHECK(trajectories[0].finish_reason == FinishReason::kStop);
  CHECK((trajectories[0].tokens == std::vector<int32_t>{2, 5, 8, 9, 2}));
  CHECK((trajectories[0].loss_mask == std::vector<uint8_t>{0, 0, 1, 1, 1}));
  CHECK(trajectories[1].finish_reason == FinishReason::kLength);
  CHECK((trajectories[1].tokens == std::vector<int32_t>{2, 5, 8, 9, 2, 5, 8, 9}));
  CHECK((trajectories[1].loss_mask == std::vector<uint8_t>{0, 0, 1, 1, 1, 1, 1, 1}));
}

TEST_CASE("limits: new tokens, context, and what comes first on the last token") {
  check_end(play({{"<p>", "a", "b", "c"}, 1, {}, {}, 1}), FinishReason::kLength, 1, "a");
  check_end(play({{"<p>", "a", "b", "c"}, 1, {"b"}, {}, 2}), FinishReason::kStopString, 2, "a");
  check_end(play({{"<p>", "a", "b", "c"}, 1, {}, {2}, 2}), FinishReason::kStop, 2, "a");
  EngineOptions options = small_options();
  options.max_context_length = 3;
  check_end(play({{"<p>", "a", "b", "c"}, 1, {}, {}, 50}, options), FinishReason::kLength, 2, "ab");
  check_end(play({{"<p>", "q", "b", "c"}, 2, {}, {}, 50}, options), FinishReason::kLength, 1, "b");
}

TEST_CASE("requests of one batch keep their own rules, and stop strings need a tokenizer") {
  const std::vector<std::string> pieces = {"<p>", "a", "b", "c", "d", "e"};
  const PieceTokenizer tokenizer(pieces);
  const auto model = pack_model(scripted_config(6), scripted_weights(1, {1, 2, 3, 4, 5, 5}), at::kFloat, 1);
  Engine engine(scripted_config(6), small_options(), &tokenizer);
  engine.set_weights(model);
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) requests.push_back(make_request(i, {0}, 0, 5));
  requests[0].sampling.stop = {"bc"};
  requests[1].sampling.stop_token_ids = {4};
  requests[2].sampling.max_new_tokens = 1;
  std::vector<std::pair<uint64_t, int32_t>> streamed;
  engine.set_token_callback([&](uint64_t id, int32_t token) { streamed.emplace_back(id, token); });
  const auto trajectories = generate_all(engine, requests);
  check_end(trajectories[0], FinishReason::kStopString, 3, "a");
  check_end(trajectories[1], FinishReason::kStop, 4, "abc");
  check_end(trajectories[2], FinishReason::kLength, 1, "a");
  check_end(trajectories[3], FinishReason::kLength, 5, "abcde");
  CHECK(streamed.size() == 3 + 4 + 1 + 5);

  Engine without(scripted_config(6), small_options(), nullptr);
  without.set_weights(model);
  CHECK_THROWS_WITH_AS(without.add(requests[0]), doctest::Contains("tokenizer"), Error);
  CHECK(generate_all(without, {requests[1]}).at(0).completion_text.empty());
}

TEST_CASE("B033 what was sampled is what is trained: ids are never made anew from text") {
  // "wa" + "ter" are sampled though the vocabulary holds "water"; a second turn continues on the same ids.
  const PieceTokenizer tokenizer({"<p>", "wa", "ter", "water", "<tool>", "!"});
  Engine engine(scripted_config(6), small_options(), &tokenizer);
  engine.set_weights(pack_model(scripted_config(6), scripted_weights(1, {1, 2, 4, 5, 5, 5}), at::kFloat, 1));
  const Trajectory first = generate_all(engine, {make_request(7, {0}, 1.0, 2)}).at(0);
  CHECK((first.tokens == std::vector<int32_t>{0, 1, 2}));
  CHECK(first.completion_text == "water");
  std::vector<int32_t> turn = first.tokens;
  turn.push_back(4);
  const Trajectory second = generate_all(engine, {make_request(7, turn, 1.0, 1)}).at(0);
  CHECK((second.tokens == std::vector<int32_t>{0, 1, 2, 4, 5}));
  CHECK((second.loss_mask == std::vector<uint8_t>{0, 0, 0, 0, 1}));
}

}  // namespace
}  // namespace troupe::engine_tests
