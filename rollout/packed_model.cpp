// Packs a weight snapshot: one job for each panel, shared over threads.
#include "rollout/packed_model.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "rollout/packed_decoder.h"

namespace troupe {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

PageMemory::PageMemory(size_t bytes) : bytes_((std::max<size_t>(bytes, 1) + kLargePage - 1) / kLargePage * kLargePage) {
  // One page more than asked for, so that the block can start on a large page.
  void* raw =
      ::mmap(nullptr, bytes_ + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) fail("cannot reserve ", bytes_ >> 20, " MiB of memory: ", std::strerror(errno));
  auto* first = static_cast<std::byte*>(raw);
  const size_t skipped = (kLargePage - reinterpret_cast<uintptr_t>(raw) % kLargePage) % kLargePage;
  if (skipped != 0) ::munmap(raw, skipped);
  ::munmap(first + skipped + bytes_, kLargePage - skipped);
  data_ = first + skipped;
  ::madvise(data_, bytes_, MADV_HUGEPAGE);  // only a wish: without it decoding is slower, not wrong
}

PageMemory::~PageMemory() { ::munmap(data_, bytes_); }

namespace {

struct Spare {
  std::mutex mutex;
  std::unique_ptr<PageMemory> pages;
};
/// Never destroyed: models may end after static objects do.
Spare& spare() {
  static auto* instance = new Spare;
  return *instance;
}

}  // namespace

std::unique_ptr<PageMemory> take_pages(size_t bytes) {
  {
    const std::scoped_lock lock(spare().mutex);
    auto& pages = spare().pages;
    if (pages != nullptr && pages->bytes() >= bytes && pages->bytes() - bytes < kLargePage) return std::move(pages);
  }
  return std::make_unique<PageMemory>(bytes);
}

void give_pages(std::unique_ptr<PageMemory> pages) {
  const std::scoped_lock lock(spare().mutex);
  spare().pages = std::move(pages);
}

namespace {

/// One matrix to pack: its panels are interleaved with those of others where `panel_stride` is above 1.
template <class T>
struct PackJob {
  Tensor weight;  // [N, K], float32 or bfloat16, contiguous
  T* panels = nullptr;
  int64_t panel_stride = 1, position = 0, num_panels = 0, depth = 0;
};

template <class T>
class Packer {
 public:
  Packer(const ModelConfig& config, const WeightSnapshot& snapshot)
      : config_(config), snapshot_(snapshot), model_(std::make_shared<PackedDecoder<T>>(config, snapshot.version)) {}

  std::shared_ptr<const PackedModel> pack(int num_threads) {
    check_names();
    plan();
    model_->memory = take_pages(elements_ * sizeof(T));
    place();
    run(num_threads);
    return model_;
  }

 private:
  static int64_t panels_for(int64_t rows) { return (rows + kPanelColumns - 1) / kPanelColumns; }
  static int64_t padded_depth(int64_t depth) { return sizeof(T) == 2 ? (depth + 1) / 2 * 2 : depth; }

  void check_names() const {
    std::set<std::string> known;
    for (const auto& spec : parameter_specs(config_)) {
      const auto found = snapshot_.tensors.find(spec.name);
      require(found != snapshot_.tensors.end(), "weights of version ", snapshot_.version, ": tensor ", spec.name,
              " is missing");
      const Tensor& tensor = found->second;
      require(tensor.defined() && tensor.sizes() == at::IntArrayRef(spec.shape), "weights: tensor ", spec.name,
              " has shape ", tensor.defined() ? tensor.sizes() : at::IntArrayRef{}, ", the model needs ",
              at::IntArrayRef(spec.shape));
      require(tensor.device().is_cpu() && at::isFloatingType(tensor.scalar_type()), "weights: tensor ", spec.name,
              " must be a floating tensor on the CPU");
      known.insert(spec.name);
    }
    for (const auto& [name, tensor] : snapshot_.tensors) {
      require(known.count(name) != 0, "weights of version ", snapshot_.version, ": tensor ", name,
              " does not belong to the model");
    }
  }

  const Tensor* find(const std::string& name) const {
    const auto found = snapshot_.tensors.find(name);
    return found == snapshot_.tensors.end() ? nullptr : &found->second;
  }

  std::vector<float> vector(const std::string& name) const {
    const Tensor* tensor = find(name);
    if (tensor == nullptr) return {};
    const Tensor values = tensor->detach().to(at::kFloat).contiguous();
    return {values.data_ptr<float>(), values.data_ptr<float>() + values.numel()};
  }

  /// at::cat would wake its own pool of threads for each small copy.
  static Tensor join_rows(std::vector<Tensor>& parts) {
    int64_t rows = 0;
    bool same = true;
    for (const auto& part : parts) {
      rows += part.size(0);
      same = same && part.scalar_type() == parts[0].scalar_type();
    }
    const Tensor joined = at::empty({rows, parts[0].size(1)}, same ? parts[0].scalar_type() : at::kFloat);
    auto* to = static_cast<std::byte*>(joined.data_ptr());
    for (auto& part : parts) {
      if (!same) part = part.to(at::kFloat);
      std::memcpy(to, part.const_data_ptr(), part.nbytes());
      to += part.nbytes();
    }
    return joined;
  }

  /// Plans `matrix` with the rows of `parts` one below the other.
  void plan_matrix(PackedMatrix<T>& matrix, const std::vector<std::string>& parts, bool interleaved = false) {
    std::vector<Tensor> tensors;
    for (const auto& name : parts) {
      Tensor tensor = snapshot_.tensors.at(name).detach();
      if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kBFloat16) tensor = tensor.to(at::kFloat);
      tensors.push_back(tensor.contiguous());
    }
    const int64_t depth = tensors[0].size(1);
    // Rows of a panel may come from two tensors; these are small enough to be joined first.
    if (!interleaved && tensors.size() > 1) tensors = {join_rows(tensors)};
    matrix.depth = padded_depth(depth);
    for (size_t i = 0; i < tensors.size(); ++i) {
      PackJob<T> job;
      job.weight = tensors[i];
      job.num_panels = panels_for(tensors[i].size(0));
      job.panel_stride = static_cast<int64_t>(tensors.size());
      job.position = static_cast<int64_t>(i);  // which of the interleaved tensors this is
      job.depth = depth;
      matrix.num_panels += job.num_panels;
      jobs_.push_back(std::move(job));
      job_matrices_.push_back(&matrix);
    }
    offsets_.emplace_back(&matrix, elements_);
    elements_ += matrix.num_panels * matrix.panel_elements();
    elements_ = (elements_ + 63) / 64 * 64;
  }

  void plan() {
    model_->layers.resize(config_.num_hidden_layers);
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      auto& layer = model_->layers[i];
      const std::string prefix = concat("model.layers.", i, ".");
      const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
      plan_matrix(layer.query_key_value,
                  {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"});
      plan_matrix(layer.output, {attention + "o_proj.weight"});
      plan_matrix(layer.gate_up, {mlp + "gate_proj.weight", mlp + "up_proj.weight"}, /*interleaved=*/true);
      plan_matrix(layer.down, {mlp + "down_proj.weight"});
      layer.input_norm = vector(prefix + "input_layernorm.weight");
      layer.post_attention_norm = vector(prefix + "post_attention_layernorm.weight");
      layer.query_norm = vector(attention + "q_norm.weight");
      layer.key_norm = vector(attention + "k_norm.weight");
      for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
        const auto part = vector(attention + name);
        layer.query_key_value_bias.insert(layer.query_key_value_bias.end(), part.begin(), part.end());
      }
      layer.output_bias = padded(vector(attention + "o_proj.bias"), layer.output.num_panels);
      layer.gate_bias = padded(vector(mlp + "gate_proj.bias"), layer.gate_up.num_panels / 2);
      layer.up_bias = padded(vector(mlp + "up_proj.bias"), layer.gate_up.num_panels / 2);
      layer.down_bias = padded(vector(mlp + "down_proj.bias"), layer.down.num_panels);
    }
    model_->final_norm = vector("model.norm.weight");
    const std::string embedding = "model.embed_tokens.weight";
    plan_matrix(model_->head, {config_.tie_word_embeddings ? embedding : "lm_head.weight"});
    if (!config_.tie_word_embeddings) plan_matrix(model_->embedding, {embedding});
    for (const double frequency : rope_inverse_frequencies(config_.rope, config_.head_dim)) {
      model_->inverse_frequencies.push_back(static_cast<float>(frequency));
    }
  }

  static std::vector<float> padded(std::vector<float> values, int64_t num_panels) {
    if (!values.empty()) values.resize(num_panels * kPanelColumns, 0.0f);
    return values;
  }

  void place() {
    T* base = reinterpret_cast<T*>(model_->memory->data());
    for (const auto& [matrix, offset] : offsets_) matrix->panels = base + offset;
    for (size_t i = 0; i < jobs_.size(); ++i) jobs_[i].panels = const_cast<T*>(job_matrices_[i]->panels);
    if (config_.tie_word_embeddings) model_->embedding = model_->head;
  }

  static void pack_panel(const PackJob<T>& job, int64_t panel) {
    const auto& kernels = typed_kernels<T>(decode_kernels());
    const int64_t row = panel * kPanelColumns, rows = std::min(kPanelColumns, job.weight.size(0) - row);
    const int64_t elements = padded_depth(job.depth) * kPanelColumns;
    T* to = job.panels + (panel * job.panel_stride + job.position) * elements;
    const int64_t offset = row * job.depth;
    if (job.weight.scalar_type() == at::kFloat) {
      kernels.pack_panel_from_float(job.weight.template const_data_ptr<float>() + offset, job.depth, rows, job.depth,
                                    to);
    } else {
      const auto* from = static_cast<const Bf16*>(job.weight.const_data_ptr());
      kernels.pack_panel_from_bf16(from + offset, job.depth, rows, job.depth, to);
    }
  }

  void run(int num_threads) const {
    std::atomic<size_t> next{0};
    std::vector<std::pair<const PackJob<T>*, int64_t>> pieces;
    for (const auto& job : jobs_) {
      for (int64_t panel = 0; panel < job.num_panels; ++panel) pieces.emplace_back(&job, panel);
    }
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

  const ModelConfig& config_;
  const WeightSnapshot& snapshot_;
  std::shared_ptr<PackedDecoder<T>> model_;
  std::vector<PackJob<T>> jobs_;
  std::vector<PackedMatrix<T>*> job_matrices_;
  std::vector<std::pair<PackedMatrix<T>*, size_t>> offsets_;
  size_t elements_ = 0;
};

}  // namespace

std::shared_ptr<const PackedModel> pack_model(const ModelConfig& config, const WeightSnapshot& snapshot,
                                              at::ScalarType dtype, int num_threads) {
  require(dtype == at::kFloat || dtype == at::kBFloat16, "packing: dtype must be float32 or bfloat16, not ",
          at::toString(dtype));
  if (dtype == at::kFloat) return Packer<float>(config, snapshot).pack(num_threads);
  return Packer<Bf16>(config, snapshot).pack(num_threads);
}

}  // namespace troupe
