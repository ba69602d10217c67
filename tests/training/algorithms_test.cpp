// The list of algorithms and what is refused.
#include "training/algorithms.h"

#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {

TEST_CASE("every algorithm of the list is possible once the sampling limit is known") {
  CHECK(known_algorithms().size() == 10);
  for (const auto& name : known_algorithms()) {
    CAPTURE(name);
    auto options = algorithm_preset(name);
    CHECK(options.name == name);
    complete_algorithm(options, 100);
    CHECK_NOTHROW(check_algorithm(options));
  }
}

TEST_CASE("an unknown algorithm names the known ones") {
  CHECK_THROWS_WITH_AS(
      algorithm_preset("trpo"),
      R"(algorithm.name = "trpo" is unknown; known: "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", )"
      R"("reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "ppo")",
      UsageError);
}

TEST_CASE("impossible combinations are refused by key") {
  const auto refused = [](auto change) {
    AlgorithmOptions options;
    change(options);
    CHECK_THROWS_AS(check_algorithm(options), UsageError);
  };
  refused([](auto& o) { o.temperature = 0; });
  refused([](auto& o) { o.dual_clip = 0.5; });
  refused([](auto& o) { o.aggregation = "constant"; });
  refused([](auto& o) { o.overlong = "penalty"; });
  refused([](auto& o) { o.correction = "token-band"; });
  refused([](auto& o) { o.advantage = "q"; });
  refused([](auto& o) { o.num_epochs = 0; });
  refused([](auto& o) { o.clip_low = 1; });
  refused([](auto& o) { o.kl_target = 0.1; });
  refused([](auto& o) { o.gamma = 0.9; });
  refused([](auto& o) { o.lambda = 1; });
  refused([](auto& o) { o.value_clip = 0; });
  refused([](auto& o) {
    o = algorithm_preset("rloo");
    o.dual_clip = 3;
  });
  refused([](auto& o) {
    o = algorithm_preset("remax");
    o.zero_variance = "drop";
  });
}

TEST_CASE("what follows from the sampling limit is filled only where it is open") {
  auto options = algorithm_preset("dapo");
  options.overlong_buffer = 7;
  complete_algorithm(options, 50);
  CHECK(options.overlong_max_tokens == 50);
  CHECK(options.overlong_buffer == 7);
  CHECK(options.constant_length == 50);
}

}  // namespace troupe
