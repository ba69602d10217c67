// Collectives over NCCL: a world of one on one device, two ranks as threads on two devices. Without devices each test
// says why it is skipped; what a build without CUDA answers is tested everywhere.
#include <iostream>
#include <thread>

#include "base/error.h"
#include "parallel/nccl.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

bool has_devices(size_t wanted, const char* test) {
  const size_t there = at::hasCUDA() ? at::getNumGPUs() : 0;
  const bool enough = nccl_factory() != nullptr && there >= wanted;
  if (!enough) {
    std::cout << "NCCL " << test << ": skipped, needs " << wanted << " CUDA device(s); "
              << (nccl_factory() == nullptr ? "this build has no CUDA" : concat(there, " are there")) << std::endl;
  }
  return enough;
}

NcclOptions options(int rank, int size, const std::string& name) {
  NcclOptions result;
  result.rank = rank, result.size = size, result.device = rank, result.group_name = name;
  result.timeout = std::chrono::seconds(20);
  return result;
}

/// One thread a rank; returns each rank's error text ("" where it had none).
std::vector<std::string> on_ranks(int size, const std::string& name, const std::function<void(Collectives&)>& body) {
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto collectives = make_nccl_collectives(options(rank, size, name));
        body(*collectives);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// Every operation against its definition, on the device and, staged, on the CPU.
void check_operations(Collectives& collectives) {
  const int rank = collectives.rank(), size = collectives.size();
  for (const auto device : {at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank)), at::Device(at::kCPU)}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const auto make = [&](const Tensor& values) { return values.to(device, dtype); };
      const auto same = [](const Tensor& a, const Tensor& b) { return at::equal(a.cpu().to(at::kLong), b); };
      Tensor gathered = make(at::zeros({3 * size}));
      collectives.all_gather(gathered, make(at::arange(3) + 10 * rank), "gather");
      const Tensor ranks = at::arange(size, at::kLong);
      CHECK(same(gathered, (ranks.unsqueeze(1) * 10 + at::arange(3, at::kLong)).flatten()));

      Tensor part = make(at::zeros({2}));
      collectives.reduce_scatter(part, make(at::arange(2 * size) + rank), "scatter");
      CHECK(same(part, (at::arange(2, at::kLong) + 2 * rank) * size + ranks.sum()));

      Tensor sum = make(at::full({4}, rank + 1));
      collectives.all_reduce(sum, "reduce");
      CHECK(same(sum, at::full({4}, size * (size + 1) / 2, at::kLong)));

      Tensor shared = make(at::full({4}, rank + 5));
      collectives.broadcast(shared, size - 1, "broadcast");
      CHECK(same(shared, at::full({4}, size + 4, at::kLong)));

      // Rank r sends p + 1 rows to rank p, each row holding its sender.
      std::vector<int64_t> sent(size), received(size, rank + 1);
      for (int peer = 0; peer < size; ++peer) sent[peer] = peer + 1;
      Tensor output = make(at::zeros({size * (rank + 1), 2}));
      collectives.all_to_all(output, make(at::full({size * (size + 1) / 2, 2}, rank)), received, sent, "exchange");
      CHECK(same(output, ranks.repeat_interleave(rank + 1).unsqueeze(1).expand({-1, 2})));

      if (size > 1 && rank < 2) {
        Tensor message = make(at::full({3}, 40 + rank));
        if (rank == 0) {
          collectives.send(message, 1, "message");
        } else {
          collectives.receive(message, 0, "message");
        }
        CHECK(same(message, at::full({3}, 40, at::kLong)));
      }
      collectives.barrier("end");
    }
  }
  CHECK(collectives.log().totals("all_gather").first == 6);
}

}  // namespace

TEST_CASE("NCCL in a build without CUDA says which build has it") {
  if (nccl_factory() != nullptr) {
    std::cout << "NCCL without CUDA: skipped, this build has CUDA" << std::endl;
    return;
  }
  CHECK_THROWS_WITH_AS(make_nccl_collectives(NcclOptions{}), doctest::Contains("cuda preset"), Error);
}

TEST_CASE("NCCL names a device that is not there") {
  if (nccl_factory() == nullptr) {
    std::cout << "NCCL missing device: skipped, this build has no CUDA" << std::endl;
    return;
  }
  NcclOptions wrong;
  wrong.device = 99;
  CHECK_THROWS_WITH_AS(make_nccl_collectives(wrong), doctest::Contains("CUDA device 99"), Error);
}

TEST_CASE("NCCL world of one") {
  if (!has_devices(1, "world of one")) return;
  CHECK(on_ranks(1, "one", check_operations) == std::vector<std::string>{""});
}

TEST_CASE("NCCL two ranks") {
  if (!has_devices(2, "two ranks")) return;
  CHECK(on_ranks(2, "two", check_operations) == std::vector<std::string>{"", ""});
}

TEST_CASE("NCCL an abort ends the peers' call with its reason") {
  if (!has_devices(2, "abort")) return;
  const auto errors = on_ranks(2, "abort", [](Collectives& collectives) {
    if (collectives.rank() == 1) return collectives.abort("the learner saw NaN");
    Tensor tensor = at::ones({4}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
    collectives.all_reduce(tensor, "lonely");
  });
  CHECK(errors[0].find("the learner saw NaN") != std::string::npos);
  CHECK(errors[0].find("lonely") != std::string::npos);
}

TEST_CASE("NCCL a rank that does not come is named within the time limit") {
  if (!has_devices(1, "missing rank")) return;
  NcclOptions alone = options(0, 2, "missing");
  alone.timeout = std::chrono::seconds(2);
  CHECK_THROWS_WITH_AS(make_nccl_collectives(alone), doctest::Contains("did not come: rank 1"), Error);
}

}  // namespace troupe
