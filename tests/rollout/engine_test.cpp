// The generation engine on a small random llama: log-probs against float64, independence of batch, budget, chunking and
// sharing, weight updates, stop rules.
#include <cmath>

#include "base/philox.h"
#include "tests/rollout/engine_helpers.h"

namespace troupe::engine_tests {
namespace {

std::vector<Trajectory> generate(const EngineOptions& options, const std::vector<GenerationRequest>& requests,
                                 EngineMetrics* metrics = nullptr, at::ScalarType dtype = at::kFloat) {
  const ModelConfig config = small_config();
  Engine engine(config, options, nullptr);
  engine.set_weights(pack_model(config, random_weights(config, 3, 11), dtype, 1));
  auto trajectories = generate_all(engine, requests);
  for (const auto& trajectory : trajectories) check_trajectory(trajectory);
  if (metrics != nullptr) *metrics = engine.metrics();
  return trajectories;
}

TEST_CASE("log-probs equal the float64 log-softmax of logits / temperature (B030, B031, invariant 6)") {
  const ModelConfig config = small_config();
  const WeightSnapshot snapshot = random_weights(config, 3, 11);
  for (const double temperature : {1.0, 0.5}) {
    auto requests = make_requests(3, 2, temperature, 20);
    for (auto& request : requests) request.sampling.top_p = 0.8;
    double largest = 0, sum = 0;
    int64_t count = 0;
    for (const auto& trajectory : generate(small_options(), requests)) {
      const Tensor log_probs = at::log_softmax(reference_logits(config, snapshot, trajectory.tokens) / temperature, -1);
      for (size_t t = trajectory.prompt_length; t < trajectory.tokens.size(); ++t) {
        const double expected = log_probs[static_cast<int64_t>(t) - 1][trajectory.tokens[t]].item<double>();
        const double difference = std::abs(expected - trajectory.log_probs[t]);
        largest = std::max(largest, difference);
        sum += difference;
        ++count;
      }
    }
    CHECK(count == 3 * 2 * 20);
    CHECK(largest < 5e-5);
    CHECK(sum / static_cast<double>(count) < 5e-6);
  }
}

TEST_CASE("B032 a request that asks for nothing is drawn from the whole distribution at temperature 1") {
  const ModelConfig config = small_config();
  const WeightSnapshot snapshot = random_weights(config, 3, 11);
  std::vector<GenerationRequest> requests(6);
  for (uint64_t id = 0; id < requests.size(); ++id) {
    requests[id].sample_id = id;
    requests[id].prompt_tokens = {3, 1, 4};
    requests[id].sampling.max_new_tokens = 40;
  }
  int64_t num_beyond_best_20 = 0;
  for (const auto& trajectory : generate(small_options(), requests)) {
    const Tensor log_probs = at::log_softmax(reference_logits(config, snapshot, trajectory.tokens), -1);
    const Tensor sums = log_probs.exp().cumsum(-1);
    for (int64_t t = trajectory.prompt_length; t < static_cast<int64_t>(trajectory.tokens.size()); ++t) {
      const int32_t id = trajectory.tokens[t];
      const double log_prob = log_probs[t - 1][id].item<double>();
      CHECK(std::abs(log_prob - trajectory.log_probs[t]) < 5e-5);
      num_beyond_best_20 += log_probs[t - 1].gt(log_prob).sum().item<int64_t>() >= 20;
      // The draw too: no token is made likelier or rarer by what came before it.
      const double uniform =
          random_uniform(small_options().seed, trajectory.sample_id, static_cast<uint32_t>(t), RandomStream::kSampling);
      CHECK(uniform < sums[t - 1][id].item<double>() + 2e-5);
      CHECK(uniform > (id == 0 ? 0 : sums[t - 1][id - 1].item<double>()) - 2e-5);
    }
  }
  CHECK(num_beyond_best_20 > 20);
}

TEST_CASE(
    "tokens and log-probs are bitwise the same alone, in a batch, preempted, chunked, shared and on two threads") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const double temperature : {0.0, 1.0}) {
      const auto requests = make_requests(4, 4, temperature, 24);
      EngineMetrics whole_metrics, tight_metrics;
      const auto whole = generate(small_options(), requests, &whole_metrics, dtype);
      CHECK(whole_metrics.preemptions == 0);
      CHECK(whole_metrics.prefill_tokens_saved > 0);

      EngineOptions tight = small_options();
      tight.prefill_chunk_tokens = 3;
      tight.num_threads = 2;
      tight.max_context_length = 44;
      tight.kv_cache_blocks = 30;
      const auto squeezed = generate(tight, requests, &tight_metrics, dtype);
      CHECK(tight_metrics.preemptions > 0);
      CHECK(tight_metrics.prefill_tokens_saved > 0);
      CHECK(tight_metrics.recomputed_tokens > 0);
      CHECK((squeezed == whole));

      std::vector<Trajectory> alone;
      for (const auto& request : requests) alone.push_back(generate(small_options(), {request}, nullptr, dtype).at(0));
      CHECK((alone == whole));
    }
  }
}

TEST_CASE("B029 each of several end ids stops; the id stays with mask 1") {
  auto requests = make_requests(1, 8, 1.0, 40);
  for (auto& request : requests) {
    for (int64_t id = 0; id < 131; id += 4) request.sampling.stop_token_ids.push_back(id);
  }
  for (const auto& trajectory : generate(small_options(), requests)) {
    REQUIRE(trajectory.finish_reason == FinishReason::kStop);
    CHECK(trajectory.tokens.back() % 4 == 0);
    CHECK(trajectory.loss_mask.back() == 1);
    for (size_t t = trajectory.prompt_length; t + 1 < trajectory.tokens.size(); ++t)
      CHECK(trajectory.tokens[t] % 4 != 0);
  }
}

TEST_CASE("B025 B026 masks come from lengths, whatever ids occur") {
  auto request = make_request(1, {2, 2, 8, 2}, 1.0, 6);
  const auto trajectory = generate(small_options(), {request}).at(0);
  CHECK(trajectory.finish_reason == FinishReason::kLength);
  CHECK((trajectory.loss_mask == std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
}

TEST_CASE("B050 B054 new weights apply between two steps and abort nothing; tokens carry the version that made them") {
  const ModelConfig config = small_config();
  for (const OnWeights on_weights : {OnWeights::kKeep, OnWeights::kRecompute, OnWeights::kFinish}) {
    EngineOptions options = small_options();
    options.on_weights = on_weights;
    Engine engine(config, options, nullptr);
    CHECK(engine.version() == -1);
    engine.set_weights(pack_model(config, random_weights(config, 3, 11), at::kFloat, 1));
    for (auto& request : make_requests(2, 2, 1.0, 12)) engine.add(std::move(request));
    for (int i = 0; i < 5; ++i) CHECK(engine.step().empty());
    engine.set_weights(pack_model(config, random_weights(config, 4, 12), at::kFloat, 1));
    CHECK(engine.version() == (on_weights == OnWeights::kFinish ? 3 : 4));
    engine.add(make_request(999, {1, 2, 3}, 1.0, 4));
    std::vector<Trajectory> finished;
    while (!engine.idle()) {
      for (auto& trajectory : engine.step()) finished.push_back(std::move(trajectory));
    }
    CHECK(engine.version() == 4);
    REQUIRE(finished.size() == 5);
    for (const auto& trajectory : finished) {
      check_trajectory(trajectory);
      if (trajectory.sample_id == 999) {
        CHECK((trajectory.versions == std::vector<VersionRun>{{3, 4}}));
        continue;
      }
      CHECK(trajectory.num_sampled_tokens() == 12);
      const int32_t first = trajectory.prompt_length;
      if (on_weights == OnWeights::kFinish) {
        CHECK((trajectory.versions == std::vector<VersionRun>{{first, 3}}));
      } else {
        CHECK((trajectory.versions == std::vector<VersionRun>{{first, 3}, {first + 5, 4}}));
      }
      if (on_weights != OnWeights::kRecompute) continue;
      // A rebuilt cache: the later tokens have exactly the log-probs of the new weights over the whole sequence.
      const Tensor log_probs =
          at::log_softmax(reference_logits(config, random_weights(config, 4, 12), trajectory.tokens), -1);
      for (size_t t = first + 5; t < trajectory.tokens.size(); ++t) {
        CHECK(std::abs(log_probs[static_cast<int64_t>(t) - 1][trajectory.tokens[t]].item<double>() -
                       trajectory.log_probs[t]) < 5e-5);
      }
    }
  }
}

TEST_CASE("B048 no block of another version is found") {
  const ModelConfig config = small_config();
  Engine engine(config, small_options(), nullptr);
  const std::vector<int32_t> prompt(33, 9);
  for (int64_t version = 1; version <= 5; ++version) {
    engine.set_weights(pack_model(config, random_weights(config, version, 20 + version), at::kFloat, 1));
    generate_all(engine, {make_request(version, prompt, 1.0, 4)});
    CHECK(engine.metrics().prefill_tokens_saved == 0);
    CHECK(engine.metrics().prefill_tokens == 33 * version);
  }
  generate_all(engine, {make_request(6, prompt, 1.0, 4)});
  CHECK(engine.metrics().prefill_tokens_saved == 32);
}

TEST_CASE("requests that cannot be served are refused by name; cancelled and drained ones free their slots") {
  const ModelConfig config = small_config();
  Engine engine(config, small_options(), nullptr);
  CHECK_THROWS_AS(engine.step(), Error);
  engine.set_weights(pack_model(config, random_weights(config, 0, 1), at::kFloat, 1));
  CHECK_THROWS_AS(engine.add(make_request(1, {}, 1, 4)), Error);
  CHECK_THROWS_AS(engine.add(make_request(1, {131}, 1, 4)), Error);
  CHECK_THROWS_AS(engine.add(make_request(1, std::vector<int32_t>(128, 1), 1, 4)), Error);
  CHECK_THROWS_AS(engine.add(make_request(1, {1}, -1, 4)), Error);
  CHECK_THROWS_AS(engine.add(make_request(1, {1}, std::nan(""), 4)), Error);
  for (uint64_t id = 0; id < 4; ++id) engine.add(make_request(id, {1, 2}, 1, 50));
  engine.step();
  CHECK(engine.num_free_slots() == 12);
  CHECK(engine.cancel(2));
  CHECK_FALSE(engine.cancel(2));
  CHECK(engine.num_free_slots() == 13);
  CHECK(engine.drain().size() == 3);
  CHECK(engine.idle());
}

TEST_CASE("a vocabulary smaller than the head is respected") {
  EngineOptions options = small_options();
  options.log_prob_vocab_size = 40;
  for (const auto& trajectory : generate(options, make_requests(2, 8, 3.0, 20))) {
    const Tensor logits = reference_logits(small_config(), random_weights(small_config(), 3, 11), trajectory.tokens);
    const Tensor log_probs = at::log_softmax(logits.slice(1, 0, 40) / 3.0, -1);
    for (size_t t = trajectory.prompt_length; t < trajectory.tokens.size(); ++t) {
      REQUIRE(trajectory.tokens[t] < 40);
      const double expected = log_probs[static_cast<int64_t>(t) - 1][trajectory.tokens[t]].item<double>();
      CHECK(std::abs(expected - trajectory.log_probs[t]) < 5e-5);
    }
  }
}

}  // namespace
}  // namespace troupe::engine_tests
