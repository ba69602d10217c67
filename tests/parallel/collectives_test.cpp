// Every operation of every backend against a direct computation, and every way in which a group can end.
#include "parallel/collectives.h"

#include <atomic>

#include "base/error.h"
#include "parallel/flight_recorder.h"
#include "tests/doctest.h"
#include "tests/parallel/ranks.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

Tensor values(int rank, int64_t numel, at::ScalarType dtype) {
  auto tensor = (at::arange(numel, at::kLong) * 7 + rank * 13) % 11 - 4;
  return dtype == at::kBool ? tensor.gt(3) : tensor.to(dtype);
}

void check_all_operations(Collectives& group, at::ScalarType dtype, int64_t numel) {
  const int rank = group.rank(), size = group.size();
  auto gathered = at::empty({size * numel}, values(0, 1, dtype).options());
  group.all_gather(gathered, values(rank, numel, dtype), "gather");
  for (int peer = 0; peer < size; ++peer) {
    require(at::equal(gathered.narrow(0, peer * numel, numel), values(peer, numel, dtype)), "all_gather of rank ",
            peer);
  }

  auto sum = values(0, size * numel, dtype).to(dtype == at::kBool ? at::kBool : at::kDouble);
  for (int peer = 1; peer < size; ++peer) {
    const auto more = values(peer, size * numel, dtype);
    sum = dtype == at::kBool ? sum.logical_or(more) : sum + more.to(at::kDouble);
  }
  auto own = at::empty({numel}, gathered.options());
  group.reduce_scatter(own, values(rank, size * numel, dtype), "scatter");
  require(at::equal(own, sum.narrow(0, rank * numel, numel).to(dtype)), "reduce_scatter");
  auto reduced = values(rank, size * numel, dtype);
  group.all_reduce(reduced, "reduce");
  require(at::equal(reduced, sum.to(dtype)), "all_reduce");

  auto sent = values(rank, numel, dtype);
  group.broadcast(sent, size - 1, "broadcast");
  require(at::equal(sent, values(size - 1, numel, dtype)), "broadcast");
  group.barrier("barrier");
}

}  // namespace

TEST_CASE("all operations, dtypes and uneven lengths, over shared memory and Gloo") {
  for (const std::string backend : {"threads", "gloo"}) {
    for (const int size : {1, 2, 3, 4}) {
      auto ranks = make_group(backend, size, seconds(20));
      const auto errors = run_ranks_collecting(ranks, [](Collectives& group) {
        for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kInt, at::kBool}) {
          for (const int64_t numel : {0, 1, 7, 3001}) check_all_operations(group, dtype, numel);
        }
      });
      for (const auto& error : errors) CHECK_MESSAGE(error == "", backend, " ", size, ": ", error);
    }
  }
}

TEST_CASE("bf16 sums accumulate in fp32, and both backends give the same bits") {
  // 256 + 1 + 1 + 1 in bf16 stays 256 (spacing 2); in fp32 it is 259, which rounds to 260.
  std::vector<Tensor> results;
  for (const std::string backend : {"threads", "gloo"}) {
    auto ranks = make_group(backend, 4, seconds(20));
    std::vector<Tensor> by_rank(4), random(4);
    const auto errors = run_ranks_collecting(ranks, [&](Collectives& group) {
      const auto rank = static_cast<size_t>(group.rank());
      auto tensor = at::full({5}, rank == 0 ? 256.0 : 1.0, at::kBFloat16);
      group.all_reduce(tensor, "sum");
      by_rank[rank] = tensor;
      auto noise = at::sin(at::arange(1000, at::kFloat) * (1.0 + static_cast<double>(rank)));
      group.all_reduce(noise, "noise");
      random[rank] = noise;
    });
    for (const auto& error : errors) CHECK(error == "");
    for (const auto& tensor : by_rank) CHECK(at::equal(tensor, at::full({5}, 260.0, at::kBFloat16)));
    for (const auto& noise : random) CHECK(at::equal(noise, random[0]));
    results.push_back(random[0]);
  }
  CHECK(at::equal(results[0], results[1]));
}

TEST_CASE("all_to_all with uneven and empty parts; messages arrive in order") {
  for (const std::string backend : {"threads", "gloo"}) {
    auto ranks = make_group(backend, 3, seconds(20));
    const auto errors = run_ranks_collecting(ranks, [](Collectives& group) {
      const int rank = group.rank();
      // Rank r sends (r + p) % 3 rows to rank p; row content: 100 * sender + receiver.
      std::vector<int64_t> input_sizes, output_sizes;
      std::vector<Tensor> rows, expected;
      for (int peer = 0; peer < 3; ++peer) {
        input_sizes.push_back((rank + peer) % 3);
        output_sizes.push_back((peer + rank) % 3);
        rows.push_back(at::full({input_sizes.back(), 2}, 100 * rank + peer, at::kInt));
        expected.push_back(at::full({output_sizes.back(), 2}, 100 * peer + rank, at::kInt));
      }
      const auto input = at::cat(rows), wanted = at::cat(expected);
      auto output = at::empty_like(wanted);
      group.all_to_all(output, input, output_sizes, input_sizes, "tokens");
      require(at::equal(output, wanted), "all_to_all on rank ", rank);

      for (int message = 0; message < 5; ++message)
        group.send(at::full({4}, 10 * rank + message, at::kLong), (rank + 1) % 3, "ring");
      auto received = at::empty({4}, at::kLong);
      for (int message = 0; message < 5; ++message) {
        group.receive(received, (rank + 2) % 3, "ring");
        require(received[0].item<int64_t>() == 10 * ((rank + 2) % 3) + message, "message ", message, " on rank ", rank);
      }
    });
    for (const auto& error : errors) CHECK_MESSAGE(error == "", backend, ": ", error);
  }
}

TEST_CASE("ranks that ask for different things learn both, at once") {
  for (const std::string backend : {"threads", "gloo"}) {
    const auto expect = [&](const RankFunction& function, std::vector<std::string> parts) {
      auto ranks = make_group(backend, 2, seconds(20));
      const auto errors = run_ranks_collecting(ranks, function);
      for (const auto& error : errors) {
        for (const auto& part : parts)
          CHECK_MESSAGE(error.find(part) != std::string::npos, backend, ": ", error, " lacks ", part);
      }
    };
    expect(
        [](Collectives& group) {
          auto tensor = at::ones({4});
          if (group.rank() == 0) {
            group.all_reduce(tensor, "loss");
          } else {
            group.broadcast(tensor, 0, "seed");
          }
        },
        {"rank 0 all_reduce 'loss'", "rank 1 broadcast 'seed'"});
    expect(
        [](Collectives& group) {
          auto tensor = at::ones({4 + group.rank()});
          group.all_reduce(tensor, "loss");
        },
        {"of 4 Float", "of 5 Float"});
    expect(
        [](Collectives& group) {
          auto output = at::empty({3});
          group.all_to_all(output, at::ones({3}), {1, 2}, {1, 2}, "tokens");
        },
        {"all_to_all 'tokens'", "which sends"});
  }
}

TEST_CASE("a rank that throws ends its peers at once with its reason") {
  for (const std::string backend : {"threads", "gloo"}) {
    auto ranks = make_group(backend, 3, seconds(20));
    Clock::time_point thrown;
    std::vector<Clock::time_point> ended(3);
    const auto errors = run_ranks_collecting(ranks, [&](Collectives& group) {
      group.barrier("start");
      if (group.rank() == 1) {
        thrown = Clock::now();
        fail("the loss of step 7 is NaN");
      }
      auto tensor = at::ones({1 << 16});
      try {
        group.all_reduce(tensor, "unit 3 gradient");
      } catch (...) {
        ended[static_cast<size_t>(group.rank())] = Clock::now();
        throw;
      }
    });
    for (const int rank : {0, 2}) {
      const auto& error = errors[static_cast<size_t>(rank)];
      CHECK_MESSAGE(error.find("rank 1 failed: the loss of step 7 is NaN") != std::string::npos, backend, ": ", error);
      CHECK(error.find("all_reduce 'unit 3 gradient'") != std::string::npos);
      // 10 ms on an idle machine; the bound here leaves room for a busy one.
      CHECK(ended[static_cast<size_t>(rank)] - thrown < milliseconds(1000));
    }
    CHECK_THROWS_AS(ranks[0]->barrier("afterwards"), Error);
  }
}

TEST_CASE("a silent rank is named with the collective at the time limit") {
  for (const std::string backend : {"threads", "gloo"}) {
    auto ranks = make_group(backend, 3, milliseconds(400));
    std::atomic<int> num_ended{0};
    const auto start = Clock::now();
    const auto errors = run_ranks_collecting(ranks, [&](Collectives& group) {
      group.barrier("step 5");
      if (group.rank() == 2) {
        while (num_ended < 2 && Clock::now() - start < seconds(20))
          std::this_thread::yield();  // stalls as long as anybody waits
        return;
      }
      auto tensor = at::ones({8});
      try {
        group.all_reduce(tensor, "unit 3 gradient");
      } catch (...) {
        ++num_ended;
        throw;
      }
    });
    CHECK(Clock::now() - start < seconds(5));
    for (const int rank : {0, 1}) {
      const auto& error = errors[static_cast<size_t>(rank)];
      CHECK_MESSAGE(error.find("all_reduce 'unit 3 gradient'") != std::string::npos, backend, ": ", error);
      CHECK_MESSAGE(error.find("rank 2") != std::string::npos, backend, ": ", error);
      CHECK_MESSAGE(error.find("barrier 'step 5'") != std::string::npos, backend, ": ", error);
    }
  }
}

TEST_CASE("a rank that leaves ends the others; wrong arguments too") {
  auto ranks = make_thread_collectives(2, seconds(20));
  std::thread peer([&] { ranks[1].reset(); });
  CHECK_THROWS_WITH_AS(ranks[0]->barrier("end"), doctest::Contains("rank 1 left the group"), Error);
  peer.join();
  auto others = make_thread_collectives(2, seconds(20));
  const auto errors = run_ranks_collecting(others, [](Collectives& group) {
    auto output = at::empty({group.rank() == 0 ? 5 : 4});
    group.all_gather(output, at::ones({2}), "unit 1 forward");
  });
  for (const auto& error : errors) CHECK(error.find("output must hold size * input") != std::string::npos);
}

TEST_CASE("the log counts calls and bytes, keeps a bounded number of records") {
  auto ranks = make_thread_collectives(1, seconds(5));
  auto tensor = at::ones({10});
  for (size_t i = 0; i < CollectiveLog::kMaxRecords + 10; ++i) ranks[0]->all_reduce(tensor, "loss");
  CHECK(ranks[0]->log().totals("all_reduce") ==
        std::pair<int64_t, int64_t>{CollectiveLog::kMaxRecords + 10, 40 * (CollectiveLog::kMaxRecords + 10)});
  CHECK(ranks[0]->log().records().size() == CollectiveLog::kMaxRecords);
  ranks[0]->log().clear();
  CHECK(ranks[0]->log().totals("all_reduce").first == 0);
}

TEST_CASE("the flight recorder keeps the newest calls and tells running from done") {
  FlightRecorder recorder(4);
  CHECK(recorder.describe() == "no collective so far");
  for (int i = 0; i < 9; ++i) recorder.end(recorder.begin("all_gather", concat("unit ", i), 100));
  recorder.begin("reduce_scatter", "unit 9", 7'100'000);
  const auto text = recorder.describe(8);
  CHECK(text.find("#7 all_gather 'unit 6' 100 bytes done in") == 0);
  CHECK(text.find("#10 reduce_scatter 'unit 9' 7.1 MB running for") != std::string::npos);
  CHECK(recorder.num_started() == 10);
}

TEST_CASE("Gloo names the rank that does not come") {
  GlooOptions options;
  options.size = 2;
  options.group_name = "lonely";
  options.timeout = milliseconds(200);
  CHECK_THROWS_WITH_AS(make_gloo_collectives(options), doctest::Contains("rank 1 of 2 did not come within 200 ms"),
                       Error);
}
