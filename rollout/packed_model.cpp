// Packs a weight snapshot: one job for each panel, shared over threads. What a layer holds is in packer.cpp.
#include "rollout/packed_model.h"

#include <atomic>
#include <set>
#include <thread>

#include "base/error.h"
#include "rollout/packer.h"

namespace troupe {
namespace {

/// One panel of a job.
template <class T>
void pack_panel(const PackJob<T>& job, int64_t panel) {
  const auto& kernels = typed_kernels<T>(decode_kernels());
  const int64_t row = panel * kPanelColumns, rows = std::min(kPanelColumns, job.weight.size(0) - row);
  const int64_t elements = job.matrix->panel_elements();
  T* to = const_cast<T*>(job.matrix->panels) + (panel * job.panel_stride + job.position) * elements;
  const int64_t depth = job.weight.size(1), offset = row * depth;
  if (job.weight.scalar_type() == at::kFloat) {
    kernels.pack_panel_from_float(job.weight.template const_data_ptr<float>() + offset, depth, rows, depth, to);
  } else {
    const auto* from = static_cast<const Bf16*>(job.weight.const_data_ptr());
    kernels.pack_panel_from_bf16(from + offset, depth, rows, depth, to);
  }
}

template <class T>
void run_jobs(const std::vector<PackJob<T>>& jobs, int num_threads) {
  std::vector<std::pair<const PackJob<T>*, int64_t>> pieces;
  for (const auto& job : jobs) {
    for (int64_t panel = 0; panel < num_panels_for(job.weight.size(0)); ++panel) pieces.emplace_back(&job, panel);
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces.size();) {
      pack_panel(*pieces[i].first, pieces[i].second);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < num_threads; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
}

void check_names(const ModelConfig& config, const WeightSnapshot& snapshot) {
  std::set<std::string> known;
  for (const auto& spec : parameter_specs(config)) {
    const auto found = snapshot.tensors.find(spec.name);
    require(found != snapshot.tensors.end(), "weights of version ", snapshot.version, ": tensor ", spec.name,
            " is missing");
    const Tensor& tensor = found->second;
    require(tensor.defined() && tensor.sizes() == at::IntArrayRef(spec.shape), "weights: tensor ", spec.name,
            " has shape ", tensor.defined() ? tensor.sizes() : at::IntArrayRef{}, ", the model needs ",
            at::IntArrayRef(spec.shape));
    require(tensor.device().is_cpu() && at::isFloatingType(tensor.scalar_type()), "weights: tensor ", spec.name,
            " must be a floating tensor on the CPU");
    known.insert(spec.name);
  }
  for (const auto& [name, tensor] : snapshot.tensors) {
    require(known.count(name) != 0, "weights of version ", snapshot.version, ": tensor ", name,
            " does not belong to the model");
  }
}

template <class T>
std::shared_ptr<const PackedModel> pack(const ModelConfig& config, const WeightSnapshot& snapshot, int num_threads) {
  check_names(config, snapshot);
  auto model = std::make_shared<PackedDecoder<T>>(config, snapshot.version);
  Packer<T> packer(config, snapshot, *model);
  packer.plan();
  run_jobs(packer.jobs(), num_threads);
  return model;
}

}  // namespace

std::shared_ptr<const PackedModel> pack_model(const ModelConfig& config, const WeightSnapshot& snapshot,
                                              at::ScalarType dtype, int num_threads) {
  require(dtype == at::kFloat || dtype == at::kBFloat16, "packing: dtype must be float32 or bfloat16, not ",
          at::toString(dtype));
  if (dtype == at::kFloat) return pack<float>(config, snapshot, num_threads);
  return pack<Bf16>(config, snapshot, num_threads);
}

}  // namespace troupe
