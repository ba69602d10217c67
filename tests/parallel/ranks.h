// Runs a function once per rank, each on a thread of its own, as the shards of a trainer do.
#pragma once

#include <exception>
#include <thread>

#include "parallel/collectives.h"

namespace troupe::parallel_testing {

using RankFunction = std::function<void(Collectives&)>;

/// A rank that throws aborts the group; every rank's error text comes back ("" where there was none).
inline std::vector<std::string> run_ranks_collecting(std::vector<std::unique_ptr<Collectives>>& ranks,
                                                     const RankFunction& function) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        function(*ranks[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        ranks[rank]->abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

/// Throws the first rank's error.
inline void run_ranks(int size, const RankFunction& function,
                      std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto ranks = make_thread_collectives(size, timeout);
  for (const auto& error : run_ranks_collecting(ranks, function)) {
    if (!error.empty()) throw std::runtime_error(error);
  }
}

}  // namespace troupe::parallel_testing
