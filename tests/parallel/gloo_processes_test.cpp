// Gloo between real processes, joined through a TCP store: this program starts itself again for each rank.
#include <csignal>

#include "tests/doctest.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/tiny_model.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

constexpr const char* kRank = "one rank of a Gloo group";

}  // namespace

TEST_CASE("one rank of a Gloo group" * doctest::skip()) {
  const auto options = own_gloo_options();
  const std::string task = environment("TASK");
  std::string answer;
  try {
    const auto group = make_gloo_collectives(options);
    if (task == "train") {
      const auto config = tiny_config(true);
      const auto weights = tiny_weights(config);
      Decoder decoder(config);
      FullyShardedDecoder model(decoder, *group, {});
      model.load([&](const std::string& name) { return weights.at(name); });
      model.zero_gradients();
      const auto batch = tiny_rows(documents_of(options.rank, options.size));
      forward_loss(model, batch).backward();
      model.finish_backward();
      const auto expected = tiny_reference(config, weights);
      require(relative_difference(model.gather_gradients(), expected.gradients) < 1e-6, "gradients differ");
      answer = "same gradients";
    } else {
      auto tensor = at::ones({100});
      for (int step = 0;; ++step) {
        if (step == 3 && options.rank == 1) ::raise(SIGKILL);
        group->all_reduce(tensor, concat("step ", step));
      }
    }
    group->barrier("end");
  } catch (const std::exception& error) {
    answer = error.what();
  }
  write_file_atomically(environment("ANSWER"), answer);
}

TEST_CASE("two processes train as one") {
  TestFolder folder("gloo");
  const int port = free_port();
  const auto first = start_rank(kRank, folder.path, "train", 0, 2, port),
             second = start_rank(kRank, folder.path, "train", 1, 2, port);
  CHECK(finish_rank(first) == "same gradients");
  CHECK(finish_rank(second) == "same gradients");
}

TEST_CASE("a killed process ends its peers long before the time limit, with the collective named") {
  TestFolder folder("gloo");
  const int port = free_port();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<RankProcess> children;
  for (int rank = 0; rank < 3; ++rank) children.push_back(start_rank(kRank, folder.path, "die", rank, 3, port));
  for (const int rank : {0, 2}) {
    const auto answer = finish_rank(children[static_cast<size_t>(rank)]);
    CHECK_MESSAGE(answer.find("all_reduce 'step 3'") != std::string::npos, answer);
    CHECK_MESSAGE(answer.find("rank 1") != std::string::npos, answer);
  }
  finish_rank(children[1]);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));
}
