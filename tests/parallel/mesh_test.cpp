// The mesh's arithmetic and groups, and the plan that lays a network over it.
#include "parallel/mesh.h"

#include <set>

#include "base/error.h"
#include "parallel/plan.h"
#include "tests/doctest.h"
#include "tests/parallel/tiny_model.h"

using namespace troupe;
using namespace troupe::parallel_testing;

TEST_CASE("ranks and places are inverse, tensor neighbours side by side, stages far apart") {
  const Mesh mesh({2, 3, 2, 2, 4});
  for (int rank = 0; rank < mesh.degrees().num_ranks(); ++rank) CHECK(mesh.rank(mesh.place(rank)) == rank);
  CHECK((mesh.place(1) == MeshPlace{.tensor = 1}));
  CHECK((mesh.place(48) == MeshPlace{.pipeline = 1}));
  CHECK((mesh.place(95) == MeshPlace{1, 2, 1, 1, 3}));
}

TEST_CASE("every rank is in one group of each name, of the right size") {
  const MeshDegrees degrees{2, 2, 3, 2, 2, 4};
  std::map<std::string, std::multiset<int>> members;
  std::map<std::string, std::set<size_t>> sizes;
  for (const auto& group : Mesh(degrees).groups()) {
    members[group.name].insert(group.members.begin(), group.members.end());
    sizes[group.name].insert(group.members.size());
    CHECK(std::is_sorted(group.members.begin(), group.members.end()));
  }
  const std::map<std::string, size_t> expected = {{"world", 48}, {"losses", 12}, {"shards", 6},       {"replicas", 2},
                                                  {"copy", 24},  {"context", 2}, {"tensor", 2},       {"pipeline", 2},
                                                  {"tied", 2},   {"experts", 4}, {"expert_shards", 3}};
  CHECK(members.size() == expected.size());
  for (const auto& [name, size] : expected) {
    CAPTURE(name);
    CHECK(sizes.at(name) == std::set<size_t>{size});
    for (int rank = 0; rank < 48; ++rank) CHECK(members.at(name).count(rank) == 1);
  }
}

TEST_CASE("a product that cannot be is refused with the arithmetic") {
  CHECK_NOTHROW(check_mesh({2, 2, 2, 2, 4}, 64));
  CHECK_THROWS_WITH_AS(check_mesh({.pipeline = 4, .shard = 3, .tensor = 8}, 64),
                       doctest::Contains("pipeline 4 * replicate 1 * shard 3 * context 1 * tensor 8 = 96"), UsageError);
  CHECK_THROWS_AS(check_mesh({.context = 0}, 64), UsageError);
  CHECK_THROWS_AS(check_mesh({.shard = 2147483647, .tensor = 2147483647}, 64), UsageError);
}

TEST_CASE("an expert degree cuts the shard, context and tensor ranks another way") {
  const Mesh mesh({.pipeline = 2, .shard = 2, .context = 2, .tensor = 2, .expert = 4});
  for (const auto& group : mesh.groups()) {
    if (group.name != "experts" && group.name != "expert_shards") continue;
    std::vector<int> parts;
    for (size_t member = 0; member < group.members.size(); ++member)
      parts.push_back(mesh.place(group.members[member]).expert);
    if (group.name == "experts") CHECK((parts == std::vector<int>{0, 1, 2, 3}));
    if (group.name == "experts") CHECK(group.members.back() == group.members.front() + 3);  // neighbours
    if (group.name == "expert_shards") CHECK((parts == std::vector<int>(2, parts.front())));
  }
  CHECK(describe(mesh.degrees()) ==
        "pipeline 2 * replicate 1 * shard 2 * context 2 * tensor 2 = 16, experts 4 * 2 shards = shard 2 * context 2 * "
        "tensor 2");
  CHECK_THROWS_WITH_AS(check_mesh({.shard = 4, .tensor = 2, .expert = 3}, 64),
                       doctest::Contains("parallelism.expert_parallel_degree = 3 does not divide shard 4 * context 1 * "
                                         "tensor 2 = 8"),
                       UsageError);
}

TEST_CASE("the parts of the tensor ranks tile every parameter, and each element is counted once") {
  auto config = tiny_config(false);  // odd sizes of vocabulary and MLP
  config.num_attention_heads = 8;
  config.attention_bias = config.mlp_bias = config.attention_output_bias = config.query_key_norm = true;
  for (const int num_keys : {1, 2, 4, 8}) {
    config.num_key_value_heads = num_keys;
    for (const int degree : {1, 2, 4, 8}) {
      CAPTURE(num_keys);
      CAPTURE(degree);
      for (const auto& spec : parameter_specs(config)) {
        CAPTURE(spec.name);
        auto counted = at::zeros(spec.shape), held = at::zeros(spec.shape);
        for (int rank = 0; rank < degree; ++rank) {
          const ParallelPlan plan(config, {.tensor = degree}, {.tensor = rank}, {});
          const auto part = plan.part(spec);
          auto view = held, counted_view = counted;
          for (size_t i = 0; i < spec.shape.size(); ++i) {
            view = view.narrow(static_cast<int64_t>(i), part.box.start[i], part.box.size[i]);
            counted_view = counted_view.narrow(static_cast<int64_t>(i), part.box.start[i], part.box.size[i]);
          }
          view.add_(1);
          if (part.is_first) counted_view.add_(1);
          // The local network has exactly these shapes.
          for (const auto& local : parameter_specs(plan.local_config()))
            if (local.name == spec.name) CHECK((local.shape == part.box.size));
        }
        CHECK(counted.eq(1).all().item<bool>());
        CHECK(held.min().item<float>() >= 1);
      }
    }
  }
}

TEST_CASE("heads that cannot be split are refused, the numbers told") {
  auto config = tiny_config(true);
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  const auto plan = [&](int degree) { return ParallelPlan(config, {.tensor = degree}, {}, {}); };
  CHECK_THROWS_WITH_AS(plan(4), doctest::Contains("the model's 6 attention heads do not divide by it"), UsageError);
  CHECK_THROWS_WITH_AS(plan(2), doctest::Contains("3 key/value heads neither divide by it"), UsageError);
  CHECK_NOTHROW(plan(3));
  CHECK_NOTHROW(plan(6));  // each key head on two ranks
}
