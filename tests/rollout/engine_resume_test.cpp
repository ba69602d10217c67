// Sequences that one engine began and another one ends: the same tokens and log-probs as without the break, and what
// does not fit begins anew.
#include "tests/rollout/scripted_model.h"

namespace troupe::engine_tests {
namespace {

std::map<uint64_t, Trajectory> run_to_end(Engine& engine) {
  std::map<uint64_t, Trajectory> finished;
  for (int step = 0; !engine.idle(); ++step) {
    REQUIRE(step < 1000);
    for (auto& trajectory : engine.step()) finished[trajectory.sample_id] = std::move(trajectory);
  }
  return finished;
}

void check_same(const Trajectory& got, const Trajectory& expected) {
  CHECK(got.tokens == expected.tokens);
  CHECK(got.log_probs == expected.log_probs);
  CHECK((got.versions == expected.versions));
  CHECK(got.finish_reason == expected.finish_reason);
  CHECK(got.completion_text == expected.completion_text);
}

}  // namespace

TEST_CASE("an engine goes on where another one was stopped, to the bit, whatever was running, waiting or preempted") {
  const ModelConfig config = small_config();
  const auto model = pack_model(config, random_weights(config, 1, 5), at::kFloat, 1);
  for (const int num_steps : {1, 5, 17}) {
    EngineOptions options = small_options();
    options.max_sequences = 5;
    options.kv_cache_blocks = 30;  // some are preempted
    const auto requests = make_requests(3, 3, 1.0, 20);
    Engine whole(config, options, nullptr), first(config, options, nullptr), second(config, options, nullptr);
    whole.set_weights(model);
    first.set_weights(model);
    for (const auto& request : requests) {
      whole.add(request);
      first.add(request);
    }
    const auto expected = run_to_end(whole);
    std::map<uint64_t, Trajectory> got, so_far;
    for (int i = 0; i < num_steps; ++i)
      for (auto& trajectory : first.step()) got[trajectory.sample_id] = std::move(trajectory);
    for (auto& trajectory : first.unfinished()) {
      CHECK(trajectory.num_sampled_tokens() > 0);
      CHECK(trajectory.finish_reason == FinishReason::kError);
      check_trajectory(trajectory);
      so_far[trajectory.sample_id] = unpack_trajectory(pack_trajectory(trajectory));
    }
    CHECK(!so_far.empty());
    second.set_weights(model);
    int64_t num_left = 0;
    for (auto request : requests) {
      if (got.contains(request.sample_id)) continue;
      request.attempt = 1;
      if (so_far.contains(request.sample_id)) request.so_far = so_far.at(request.sample_id);
      num_left += 20 - (request.so_far ? request.so_far->num_sampled_tokens() : 0);
      second.add(request);
    }
    got.merge(run_to_end(second));
    CHECK(second.metrics().decoded_tokens == num_left);  // nothing is made twice
    REQUIRE(got.size() == expected.size());
    for (const auto& [id, trajectory] : expected) check_same(got.at(id), trajectory);
  }
}

TEST_CASE("a stop string that begins before the break is found after it") {
  const PieceTokenizer tokenizer({"a", "E", "N", "D", "z"});
  const auto model = pack_model(scripted_config(5), scripted_weights(1, {1, 2, 3, 4, 0}), at::kFloat, 1);
  auto request = make_request(3, {0}, 1.0, 10);
  request.sampling.stop = {"END"};
  Engine first(scripted_config(5), small_options(), &tokenizer),
      second(scripted_config(5), small_options(), &tokenizer);
  for (Engine* engine : {&first, &second}) engine->set_weights(model);
  first.add(request);
  first.step();
  first.step();
  REQUIRE(first.unfinished().size() == 1);
  request.so_far = first.unfinished()[0];
  second.add(request);
  const auto finished = run_to_end(second);
  CHECK(finished.at(3).finish_reason == FinishReason::kStopString);
  CHECK(finished.at(3).tokens == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(finished.at(3).completion_text.empty());
}

TEST_CASE("under finish, tokens of other weights are not gone on with; nor where prompt, length or ids do not fit") {
  const auto begun = [](OnWeights on_weights, int64_t version, auto change) {
    EngineOptions options = small_options();
    options.on_weights = on_weights;
    options.max_context_length = 12;
    Engine first(scripted_config(61), options, nullptr), second(scripted_config(61), options, nullptr);
    first.set_weights(pack_model(scripted_config(61), striding_weights(1, 61, 1), at::kFloat, 1));
    auto request = make_request(1, {0}, 1.0, 8);
    first.add(request);
    for (int i = 0; i < 4; ++i) first.step();
    request.so_far = first.unfinished().at(0);
    change(request);
    second.set_weights(pack_model(scripted_config(61), striding_weights(version, 61, version), at::kFloat, 1));
    second.add(std::move(request));
    return run_to_end(second).at(1);
  };
  const auto nothing = [](GenerationRequest&) {};
  CHECK((begun(OnWeights::kKeep, 2, nothing).versions == std::vector<VersionRun>{{1, 1}, {5, 2}}));
  CHECK((begun(OnWeights::kRecompute, 2, nothing).versions == std::vector<VersionRun>{{1, 1}, {5, 2}}));
  CHECK((begun(OnWeights::kFinish, 2, nothing).versions == std::vector<VersionRun>{{1, 2}}));
  CHECK((begun(OnWeights::kFinish, 1, nothing).versions == std::vector<VersionRun>{{1, 1}}));
  const std::vector<VersionRun> anew{{1, 2}};
  CHECK((begun(OnWeights::kKeep, 2, [](GenerationRequest& r) { r.prompt_tokens = {5}; }).versions == anew));
  CHECK((begun(OnWeights::kKeep, 2, [](GenerationRequest& r) { r.sampling.max_new_tokens = 4; }).versions == anew));
  CHECK((begun(OnWeights::kKeep, 2, [](GenerationRequest& r) { r.so_far->tokens.back() = 61; }).versions == anew));
}

TEST_CASE("under finish, a sample that goes on enters before new ones: weights that wait for its end come") {
  EngineOptions options = small_options();
  options.on_weights = OnWeights::kFinish;
  options.max_sequences = 1;
  const auto model = [](int64_t version) {
    return pack_model(scripted_config(61), striding_weights(version, 61, version), at::kFloat, 1);
  };
  auto resumed = make_request(3, {5}, 1.0, 6);
  {
    Engine before(scripted_config(61), options, nullptr);
    before.set_weights(model(1));
    before.add(resumed);
    before.step();
    before.step();
    resumed.so_far = before.unfinished().at(0);
  }
  Engine engine(scripted_config(61), options, nullptr);
  engine.set_weights(model(1));
  engine.add(make_request(1, {0}, 1.0, 4));
  engine.step();  // it runs
  engine.add(make_request(2, {0}, 1.0, 4));
  engine.add(resumed);
  engine.set_weights(model(2));
  const auto finished = run_to_end(engine);
  CHECK((finished.at(1).versions == std::vector<VersionRun>{{1, 1}}));
  CHECK((finished.at(3).versions == std::vector<VersionRun>{{1, 1}}));
  CHECK(finished.at(3).tokens == std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11});
  CHECK((finished.at(2).versions == std::vector<VersionRun>{{1, 2}}));
}

TEST_CASE("a sample that goes on fits into the cache that holds its prompt and all of its new tokens") {
  EngineOptions options = small_options();
  options.kv_block_tokens = 4;
  options.kv_cache_blocks = 3;
  const auto model = pack_model(scripted_config(61), striding_weights(1, 61, 1), at::kFloat, 1);
  auto request = make_request(1, {0, 1, 2, 3}, 1.0, 8);  // 12 tokens
  Engine first(scripted_config(61), options, nullptr), second(scripted_config(61), options, nullptr);
  for (Engine* engine : {&first, &second}) engine->set_weights(model);
  first.add(request);
  for (int i = 0; i < 5; ++i) first.step();
  request.so_far = first.unfinished().at(0);
  second.add(request);
  CHECK(run_to_end(second).at(1).tokens == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  request.sampling.max_new_tokens = 9;
  CHECK_THROWS_AS(second.add(request), Error);
}

}  // namespace troupe::engine_tests
