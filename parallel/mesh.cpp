#include "parallel/mesh.h"

#include <functional>
#include <map>

#include "base/error.h"

namespace troupe {

std::string describe(const MeshDegrees& d) {
  const auto spread = concat("shard ", d.shard, " * context ", d.context, " * tensor ", d.tensor);
  return concat("pipeline ", d.pipeline, " * replicate ", d.replicate, " * ", spread, " = ",
                static_cast<int64_t>(d.pipeline) * d.replicate * d.shard * d.context * d.tensor,
                d.expert == 1
                    ? ""
                    : concat(", experts ", d.expert, " * ", d.num_expert_ranks() / d.expert, " shards = ", spread));
}

void check_mesh(const MeshDegrees& d, int max_ranks) {
  int64_t product = 1;
  for (const int degree : {d.pipeline, d.replicate, d.shard, d.context, d.tensor}) {
    if (degree < 1) throw UsageError(concat("parallelism: every degree is at least 1: ", describe(d)));
    if (degree > max_ranks || (product *= degree) > max_ranks)
      throw UsageError(
          concat("parallelism: ", describe(d), " ranks; ranks are threads of one process here: at most ", max_ranks));
  }
  const int spread = d.num_expert_ranks();
  if (d.expert < 1 || spread % d.expert != 0) {
    throw UsageError(concat("parallelism.expert_parallel_degree = ", d.expert, " does not divide shard ", d.shard,
                            " * context ", d.context, " * tensor ", d.tensor, " = ", spread,
                            ", the ranks that experts are spread over"));
  }
}

MeshPlace Mesh::place(int rank) const {
  MeshPlace place;
  const auto take = [&](int degree) {
    const int index = rank % degree;
    rank /= degree;
    return index;
  };
  place.tensor = take(degrees_.tensor);
  place.context = take(degrees_.context);
  place.shard = take(degrees_.shard);
  place.replicate = take(degrees_.replicate);
  place.pipeline = take(degrees_.pipeline);
  place.expert = number_in_stage(place) % degrees_.expert;
  return place;
}

int Mesh::number_in_stage(const MeshPlace& p) const {
  return (p.shard * degrees_.context + p.context) * degrees_.tensor + p.tensor;
}

int Mesh::rank(const MeshPlace& p) const {
  const auto& d = degrees_;
  return (p.pipeline * d.replicate + p.replicate) * d.num_expert_ranks() + number_in_stage(p);
}

std::vector<MeshGroup> Mesh::groups() const {
  // What the members of a group have in common: the place with the group's own dimensions set to 0.
  const auto stand_at = [this](MeshPlace& p, int number) {  // in the stage
    p.tensor = number % degrees_.tensor;
    p.context = number / degrees_.tensor % degrees_.context;
    p.shard = number / degrees_.tensor / degrees_.context;
  };
  const std::vector<std::pair<const char*, std::function<void(MeshPlace&)>>> dimensions = {
      {"world", [](MeshPlace& p) { p = {}; }},
      {"losses", [](MeshPlace& p) { p.replicate = p.shard = p.context = 0; }},
      {"shards", [](MeshPlace& p) { p.shard = p.context = 0; }},
      {"replicas", [](MeshPlace& p) { p.replicate = 0; }},
      {"copy",
       [](MeshPlace& p) {
         p = {0, p.replicate, 0, 0, 0};
       }},
      {"context", [](MeshPlace& p) { p.context = 0; }},
      {"tensor", [](MeshPlace& p) { p.tensor = 0; }},
      {"pipeline", [](MeshPlace& p) { p.pipeline = 0; }},
      {"experts", [&](MeshPlace& p) { stand_at(p, number_in_stage(p) / degrees_.expert * degrees_.expert); }},
      {"expert_shards", [&](MeshPlace& p) { stand_at(p, number_in_stage(p) % degrees_.expert); }},
  };
  std::vector<MeshGroup> groups;
  const auto add = [&](const std::string& name, const std::function<void(MeshPlace&)>& join, auto&& takes_part) {
    std::map<int, std::vector<int>> members;  // by the first member
    for (int rank = 0; rank < degrees_.num_ranks(); ++rank) {
      auto common = place(rank);
      if (!takes_part(common)) continue;
      join(common);
      members[this->rank(common)].push_back(rank);
    }
    for (auto& [first, ranks] : members) groups.push_back({name, std::move(ranks)});
  };
  for (const auto& [name, join] : dimensions) add(name, join, [](const MeshPlace&) { return true; });
  if (degrees_.pipeline > 1) {
    add(
        "tied", [](MeshPlace& p) { p.pipeline = 0; },
        [&](const MeshPlace& p) { return p.pipeline == 0 || p.pipeline == degrees_.pipeline - 1; });
  }
  return groups;
}

}  // namespace troupe
