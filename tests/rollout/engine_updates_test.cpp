// New weights between two steps: which version made which token, what becomes of caches, and that a refused update
// changes nothing. The scripted model of version v goes on by v ids, so every token shows who made it.
#include <cmath>

#include "base/philox.h"
#include "tests/rollout/scripted_model.h"

namespace troupe::engine_tests {
namespace {

constexpr int64_t kVocabulary = 61;

std::shared_ptr<const PackedModel> striding(int64_t version) {
  return pack_model(scripted_config(kVocabulary), striding_weights(version, kVocabulary, version), at::kFloat, 1);
}

int64_t version_at(const Trajectory& trajectory, int64_t index) {
  int64_t version = -1;
  for (const auto& run : trajectory.versions) {
    if (run.first_index <= index) version = run.version;
  }
  return version;
}

void check_versions(const Trajectory& trajectory) {
  check_trajectory(trajectory);
  REQUIRE(trajectory.versions.front().first_index == trajectory.prompt_length);
  for (auto t = static_cast<int64_t>(trajectory.prompt_length); t < static_cast<int64_t>(trajectory.tokens.size());
       ++t) {
    const int64_t stride = (trajectory.tokens[t] - trajectory.tokens[t - 1] + kVocabulary) % kVocabulary;
    REQUIRE(version_at(trajectory, t) == stride);
  }
}

TEST_CASE("B050 every token is tagged with the weights that made it, under updates, preemption and chunks") {
  for (const OnWeights on_weights : {OnWeights::kKeep, OnWeights::kRecompute, OnWeights::kFinish}) {
    for (uint32_t trial = 0; trial < 12; ++trial) {
      uint32_t counter = 0;
      const auto random = [&](uint64_t limit) {
        return static_cast<int64_t>(random_words(4, trial, ++counter, RandomStream::kDataOrder)[0] % limit);
      };
      EngineOptions options = small_options();
      options.on_weights = on_weights;
      options.max_sequences = 5;
      options.prefill_chunk_tokens = 1 + static_cast<int32_t>(random(6));
      options.max_context_length = 40;
      options.kv_cache_blocks = 10 + random(20);
      Engine engine(scripted_config(kVocabulary), options, nullptr);
      int64_t version = 1, num_added = 0, num_finished = 0, num_mixed = 0, num_updates = 0;
      engine.set_weights(striding(version));
      for (int step = 0; step < 120 || !engine.idle(); ++step) {
        REQUIRE(step < 2000);
        if (step < 120 && random(3) == 0) {
          const std::vector<int32_t> prompt(1 + random(12), static_cast<int32_t>(random(3)));
          engine.add(
              make_request(static_cast<uint64_t>(num_added++), prompt, 1.0, 1 + static_cast<int32_t>(random(20))));
        }
        if (step < 120 && random(10) == 0) {
          engine.set_weights(striding(++version));
          ++num_updates;
          // Applied now or when the started ones have ended, never tagged before.
          if (on_weights != OnWeights::kFinish) CHECK(engine.version() == version);
        }
        const int64_t applied = engine.version();
        for (const auto& trajectory : engine.step()) {
          ++num_finished;
          check_versions(trajectory);
          CHECK(trajectory.versions.back().version == applied);
          num_mixed += trajectory.versions.size() > 1;
        }
      }
      CHECK(num_finished == num_added);  // B054: an update ends nothing early
      CHECK(engine.version() == version);
      if (on_weights == OnWeights::kFinish) {
        CHECK(num_mixed == 0);
        CHECK(engine.metrics().weight_updates <= num_updates);  // a newer one may replace one that still waits
      } else {
        CHECK(engine.metrics().weight_updates == num_updates);
        CHECK(num_mixed > 0);
      }
    }
  }
}

TEST_CASE("B050 under finish, a request that comes before the update is applied waits for it") {
  EngineOptions options = small_options();
  options.on_weights = OnWeights::kFinish;
  Engine engine(scripted_config(kVocabulary), options, nullptr);
  engine.set_weights(striding(3));
  engine.add(make_request(1, {0}, 1.0, 4));
  engine.step();
  engine.set_weights(striding(4));
  engine.set_weights(striding(5));  // replaces the one that waits
  engine.add(make_request(2, {0}, 1.0, 2));
  CHECK(engine.version() == 3);
  std::vector<Trajectory> finished;
  while (!engine.idle()) {
    for (auto& trajectory : engine.step()) finished.push_back(std::move(trajectory));
  }
  REQUIRE(finished.size() == 2);
  CHECK((finished[0].versions == std::vector<VersionRun>{{1, 3}}));
  CHECK((finished[1].versions == std::vector<VersionRun>{{1, 5}}));
  for (const auto& trajectory : finished) check_versions(trajectory);
  CHECK(engine.metrics().weight_updates == 1);
}

TEST_CASE("B053 an update that is refused leaves the old version serving as before") {
  const ModelConfig config = small_config();
  Engine engine(config, small_options(), nullptr), untouched(config, small_options(), nullptr);
  const auto model = pack_model(config, random_weights(config, 1, 5), at::kFloat, 1);
  for (Engine* e : {&engine, &untouched}) {
    e->set_weights(model);
    for (auto& request : make_requests(2, 2, 1.0, 10)) e->add(std::move(request));
    for (int i = 0; i < 4; ++i) e->step();
  }
  // A snapshot with a tensor missing, too many or misshaped never becomes a model.
  const auto broken = [&](auto change, const char* name) {
    WeightSnapshot snapshot = random_weights(config, 2, 6);
    change(snapshot.tensors);
    CHECK_THROWS_WITH_AS(pack_model(config, snapshot, at::kFloat, 1), doctest::Contains(name), Error);
  };
  broken([](TensorMap& t) { t.erase("model.layers.1.mlp.up_proj.weight"); }, "model.layers.1.mlp.up_proj.weight");
  broken([](TensorMap& t) { t["model.layers.9.mlp.up_proj.weight"] = at::ones({2, 2}); }, "model.layers.9");
  broken([](TensorMap& t) { t["model.norm.weight"] = at::ones({47}); }, "model.norm.weight");
  // One of another shape or dtype is refused by the engine.
  ModelConfig wider = config;
  wider.intermediate_size = 104;
  CHECK_THROWS_AS(engine.set_weights(pack_model(wider, random_weights(wider, 2, 6), at::kFloat, 1)), Error);
  CHECK_THROWS_AS(engine.set_weights(pack_model(config, random_weights(config, 2, 6), at::kBFloat16, 1)), Error);
  CHECK_THROWS_AS(engine.set_weights(nullptr), Error);
  CHECK(engine.version() == 1);
  const auto rest = [](Engine& e) {
    std::vector<Trajectory> all;
    while (!e.idle()) {
      for (auto& trajectory : e.step()) all.push_back(std::move(trajectory));
    }
    return all;
  };
  CHECK((rest(engine) == rest(untouched)));
  CHECK(engine.metrics().weight_updates == 0);
  engine.set_weights(pack_model(config, random_weights(config, 2, 6), at::kFloat, 1));
  CHECK(engine.version() == 2);
}

TEST_CASE("B051 weights that come back give bit for bit what they gave before") {
  const ModelConfig config = small_config();
  for (const double temperature : {0.0, 1.0}) {
    Engine engine(config, small_options(), nullptr);
    const auto play = [&](int64_t version, uint64_t seed) {
      engine.set_weights(pack_model(config, random_weights(config, version, seed), at::kFloat, 1));
      auto trajectories = generate_all(engine, make_requests(3, 3, temperature, 14));
      for (auto& trajectory : trajectories) {
        CHECK((trajectory.versions == std::vector<VersionRun>{{trajectory.prompt_length, version}}));
        trajectory.versions.clear();
      }
      return trajectories;
    };
    const auto first = play(1, 5), other = play(2, 6), again = play(3, 5);
    for (size_t i = 0; i < first.size(); ++i) CHECK(other[i].tokens != first[i].tokens);
    CHECK((again == first));
  }
}

TEST_CASE("weights that give numbers which are not finite stop the engine by name") {
  const ModelConfig config = small_config();
  WeightSnapshot snapshot = random_weights(config, 8, 5);
  snapshot.tensors["model.norm.weight"][3] = std::nan("");
  Engine engine(config, small_options(), nullptr);
  engine.set_weights(pack_model(config, snapshot, at::kFloat, 1));
  engine.add(make_request(1, {1, 2, 3}, 1.0, 4));
  CHECK_THROWS_WITH_AS(engine.step(), doctest::Contains("version 8"), Error);
}

TEST_CASE("prefixes of a version that comes back are computed anew, those of the current one are kept") {
  const ModelConfig config = small_config();
  const auto one = pack_model(config, random_weights(config, 1, 5), at::kFloat, 1);
  const auto two = pack_model(config, random_weights(config, 2, 6), at::kFloat, 1);
  Engine engine(config, small_options(), nullptr);
  const std::vector<int32_t> prompt(21, 9);
  uint64_t id = 0;
  const auto saved = [&] {
    const int64_t before = engine.metrics().prefill_tokens_saved;
    generate_all(engine, {make_request(++id, prompt, 1.0, 3)});
    return engine.metrics().prefill_tokens_saved - before;
  };
  engine.set_weights(one);
  CHECK(saved() == 0);
  CHECK(saved() == 20);
  engine.set_weights(two);
  CHECK(saved() == 0);
  engine.set_weights(one);
  CHECK(saved() == 0);
  CHECK(saved() == 20);
}

TEST_CASE("B034 a short prompt beside long ones has the log-probs that it has alone") {
  const ModelConfig config = small_config();
  const auto model = pack_model(config, random_weights(config, 1, 5), at::kFloat, 1);
  const auto run = [&](std::vector<GenerationRequest> requests) {
    Engine engine(config, small_options(), nullptr);
    engine.set_weights(model);
    return generate_all(engine, std::move(requests)).at(0);
  };
  const auto request = make_request(1, {3, 1, 4}, 1.0, 12);
  const Trajectory alone = run({request});
  CHECK(
      (run({request, make_request(2, std::vector<int32_t>(50, 7), 1.0, 12), make_request(3, {5}, 1.0, 12)}) == alone));
  const Tensor log_probs = at::log_softmax(reference_logits(config, random_weights(config, 1, 5), alone.tokens), -1);
  for (size_t t = 3; t < alone.tokens.size(); ++t) {
    CHECK(std::abs(log_probs[static_cast<int64_t>(t) - 1][alone.tokens[t]].item<double>() - alone.log_probs[t]) < 5e-5);
  }
}

TEST_CASE("the engine draws by protocol: one uniform a token from (seed, sample id, token index), whatever the batch") {
  const ModelConfig config = small_config();
  const WeightSnapshot snapshot = random_weights(config, 1, 5);
  EngineOptions options = small_options();
  options.seed = 0x1234567890abcdef;
  Engine engine(config, options, nullptr);
  engine.set_weights(pack_model(config, snapshot, at::kFloat, 1));
  std::vector<GenerationRequest> requests;
  for (const uint64_t group : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40}) {
    for (uint32_t k = 0; k < 2; ++k)
      requests.push_back(make_request(make_sample_id(group, k), {3, 1, 4, 1, 5}, 1.3, 25));
  }
  for (const auto& trajectory : generate_all(engine, requests)) {
    const Tensor logits = reference_logits(config, snapshot, trajectory.tokens) / 1.3;
    const Tensor sums = at::softmax(logits, -1).cumsum(-1).contiguous();
    for (auto t = static_cast<int64_t>(trajectory.prompt_length); t < static_cast<int64_t>(trajectory.tokens.size());
         ++t) {
      const double* sum = sums.const_data_ptr<double>() + (t - 1) * config.vocab_size;
      const double uniform =
          random_uniform(options.seed, trajectory.sample_id, static_cast<uint32_t>(t), RandomStream::kSampling);
      const int32_t id = trajectory.tokens[t];
      CHECK(uniform < sum[id] + 2e-5);
      CHECK(uniform > (id == 0 ? 0 : sum[id - 1]) - 2e-5);
    }
  }
}

}  // namespace
}  // namespace troupe::engine_tests
