// See nccl_collectives.h for how a call waits and ends.
#include "parallel/cuda/nccl_collectives.h"

#include <ATen/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "models/kernels/cuda/register.h"
#include "parallel/cuda/nccl_group.h"
#include "parallel/cuda/register.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStorePeriod{50};  // how often a waiting call asks the store
constexpr std::chrono::microseconds kSpin{200};        // of looking without sleeping
constexpr std::chrono::microseconds kNap{50};

ncclDataType_t nccl_type(const Tensor& tensor, const std::string& operation) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kByte:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kBool:
      return ncclUint8;
    default:
      fail("NCCL ", operation, ": no data type for ", at::toString(tensor.scalar_type()));
  }
}

int64_t row_elements(const Tensor& tensor) {
  return std::accumulate(tensor.sizes().begin() + 1, tensor.sizes().end(), int64_t{1}, std::multiplies<>());
}

class NcclCollectives final : public Collectives {
 public:
  explicit NcclCollectives(const NcclOptions& options)
      : options_(options),
        device_(at::kCUDA, static_cast<at::DeviceIndex>(check_device(options))),
        store_(options),
        event_(make_event()) {
    join();
  }
  ~NcclCollectives() override {
    // Every call waited for its operation, so nothing is in flight and abort only frees what this rank holds.
    const at::DeviceGuard guard(device_);
    if (communicator_ != nullptr) ncclCommAbort(communicator_);
    cudaEventDestroy(event_);
  }
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void all_gather(Tensor& output, const Tensor& input, const std::string& label) override {
    check_pair("all_gather", output, input, output.numel() == input.numel() * size());
    Staged to(output, device_), from(input, device_);
    run("all_gather", label, output.nbytes(), [&](cudaStream_t stream) {
      return ncclAllGather(from.data(), to.data(), from.count(), nccl_type(input, "all_gather"), communicator_, stream);
    });
    to.copy_back(output);
  }
  void reduce_scatter(Tensor& output, const Tensor& input, const std::string& label) override {
    check_pair("reduce_scatter", output, input, input.numel() == output.numel() * size());
    Staged to(output, device_), from(input, device_);
    run("reduce_scatter", label, input.nbytes(), [&](cudaStream_t stream) {
      return ncclReduceScatter(from.data(), to.data(), to.count(), nccl_type(input, "reduce_scatter"), ncclSum,
                               communicator_, stream);
    });
    to.copy_back(output);
  }
  void all_reduce(Tensor& tensor, const std::string& label) override {
    check_pair("all_reduce", tensor, tensor, true);
    Staged both(tensor, device_);
    run("all_reduce", label, tensor.nbytes(), [&](cudaStream_t stream) {
      return ncclAllReduce(both.data(), both.data(), both.count(), nccl_type(tensor, "all_reduce"), ncclSum,
                           communicator_, stream);
    });
    both.copy_back(tensor);
  }
  void broadcast(Tensor& tensor, int root, const std::string& label) override {
    check_pair("broadcast", tensor, tensor, root >= 0 && root < size());
    Staged both(tensor, device_);
    run("broadcast", label, tensor.nbytes(), [&](cudaStream_t stream) {
      return ncclBroadcast(both.data(), both.data(), both.count(), nccl_type(tensor, "broadcast"), root, communicator_,
                           stream);
    });
    both.copy_back(tensor);
  }
  void all_to_all(Tensor& output, const Tensor& input, const std::vector<int64_t>& output_sizes,
                  const std::vector<int64_t>& input_sizes, const std::string& label) override {
    const auto fits = [this](const Tensor& tensor, const std::vector<int64_t>& sizes) {
      return tensor.dim() >= 1 && std::ssize(sizes) == size() &&
             std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == tensor.size(0);
    };
    check_pair("all_to_all", output, input,
               fits(output, output_sizes) && fits(input, input_sizes) && row_elements(output) == row_elements(input));
    Staged to(output, device_), from(input, device_);
    const auto type = nccl_type(input, "all_to_all");
    const int64_t row = row_elements(input), row_bytes = row * input.element_size();
    run("all_to_all", label, input.nbytes(), [&](cudaStream_t stream) {
      ncclResult_t result = ncclGroupStart();
      const auto* source = static_cast<const char*>(from.data());
      auto* target = static_cast<char*>(to.data());
      const auto keep_first = [&result](ncclResult_t next) {
        if (result == ncclSuccess || result == ncclInProgress) result = next;
      };
      for (int peer = 0; peer < size(); ++peer) {
        const int64_t sent = input_sizes[peer], received = output_sizes[peer];
        if (sent > 0) keep_first(ncclSend(source, sent * row, type, peer, communicator_, stream));
        if (received > 0) keep_first(ncclRecv(target, received * row, type, peer, communicator_, stream));
        source += sent * row_bytes;
        target += received * row_bytes;
      }
      keep_first(ncclGroupEnd());
      return result;
    });
    to.copy_back(output);
  }
  void send(const Tensor& tensor, int to, const std::string& label) override {
    check_pair("send", tensor, tensor, to >= 0 && to < size() && to != rank());
    Staged from(tensor, device_);
    run("send", label, tensor.nbytes(), [&](cudaStream_t stream) {
      return ncclSend(from.data(), from.count(), nccl_type(tensor, "send"), to, communicator_, stream);
    });
  }
  void receive(Tensor& tensor, int from, const std::string& label) override {
    check_pair("receive", tensor, tensor, from >= 0 && from < size() && from != rank());
    Staged to(tensor, device_);
    run("receive", label, tensor.nbytes(), [&](cudaStream_t stream) {
      return ncclRecv(to.data(), to.count(), nccl_type(tensor, "receive"), from, communicator_, stream);
    });
    to.copy_back(tensor);
  }
  void barrier(const std::string& label) override {
    const at::DeviceGuard guard(device_);
    const Tensor flag = at::zeros({1}, at::TensorOptions(device_).dtype(at::kInt));
    run("barrier", label, 0, [&](cudaStream_t stream) {
      return ncclAllReduce(flag.data_ptr(), flag.data_ptr(), 1, ncclInt32, ncclSum, communicator_, stream);
    });
  }
  void abort(const std::string& reason) override {
    store_.set_abort_reason(concat("rank ", rank(), " ended the group: ", reason));
  }

 private:
  // A tensor of the caller as the device sees it: itself, or a copy where it lies on the CPU.
  class Staged {
   public:
    Staged(const Tensor& tensor, at::Device device) : tensor_(tensor.is_cpu() ? tensor.to(device) : tensor) {}
    void* data() const { return tensor_.data_ptr(); }
    size_t count() const { return static_cast<size_t>(tensor_.numel()); }
    void copy_back(Tensor& tensor) const {
      if (tensor.is_cpu()) tensor.detach().copy_(tensor_);
    }

   private:
    Tensor tensor_;
  };

  static int check_device(const NcclOptions& options) {
    const int count = c10::cuda::device_count();
    require(options.device >= 0 && options.device < count, "NCCL group \"", options.group_name, "\": rank ",
            options.rank, " is to drive CUDA device ", options.device, ", but ", count, " are there");
    return options.device;
  }

  cudaEvent_t make_event() const {
    const at::DeviceGuard guard(device_);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    return event;
  }

  void check_cuda(cudaError_t error, const std::string& doing) const {
    require(error == cudaSuccess, "NCCL group \"", options_.group_name, "\", rank ", rank(), ": CUDA error while ",
            doing, ": ", cudaGetErrorString(error));
  }

  void check_pair(const char* operation, const Tensor& output, const Tensor& input, bool fits) const {
    for (const Tensor* tensor : {&output, &input}) {
      require(tensor->is_contiguous() && (tensor->is_cpu() || tensor->device() == device_), "NCCL ", operation,
              ": tensors must be contiguous on ", device_.str(), " or the CPU; one is on ", tensor->device().str(),
              tensor->is_contiguous() ? "" : " and not contiguous");
    }
    require(output.scalar_type() == input.scalar_type(), "NCCL ", operation, ": output is ",
            at::toString(output.scalar_type()), ", input ", at::toString(input.scalar_type()));
    require(fits, "NCCL ", operation, ": sizes or peer do not fit: output ", output.sizes(), ", input ", input.sizes(),
            ", rank ", rank(), " of ", size());
  }

  void join() {
    const at::DeviceGuard guard(device_);
    ncclUniqueId id{};
    if (rank() == 0) {
      const ncclResult_t result = ncclGetUniqueId(&id);
      require(result == ncclSuccess, "NCCL gives no unique id: ", ncclGetErrorString(result));
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
    const std::vector<uint8_t> shared = store_.exchange_id({bytes, bytes + sizeof(id)});
    require(shared.size() == sizeof(id), "NCCL group \"", options_.group_name, "\": rank 0 sent an id of ",
            shared.size(), " bytes instead of ", sizeof(id), " (another NCCL version?)");
    std::copy(shared.begin(), shared.end(), reinterpret_cast<uint8_t*>(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = ncclCommInitRankConfig(&communicator_, size(), id, rank(), &config);
    wait(result, "join", "", [] { return true; });
  }

  /// Enqueues an operation on the current stream and waits for its end.
  template <class Enqueue>
  void run(const std::string& operation, const std::string& label, int64_t bytes, const Enqueue& enqueue) {
    const at::DeviceGuard guard(device_);
    require(ended_.empty(), ended_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index());
    sequence_ = recorder_->begin(operation, label, bytes);
    const ncclResult_t result = enqueue(stream);
    wait(result, operation, label, [] { return true; });  // until it is enqueued
    check_cuda(cudaEventRecord(event_, stream), operation);
    wait(ncclSuccess, operation, label, [&] {
      const cudaError_t error = cudaEventQuery(event_);
      if (error != cudaErrorNotReady) check_cuda(error, operation);
      return error == cudaSuccess;
    });
    recorder_->end(sequence_);
    log_.add({operation, label, bytes});
  }

  /// Returns once NCCL has no work of the host in progress and `done` holds; ends the group on error, abort or
  /// time-out.
  template <class Done>
  void wait(ncclResult_t result, const std::string& operation, const std::string& label, const Done& done) {
    const auto start = Clock::now();
    auto next_look = start + kStorePeriod;
    while (true) {
      if (result == ncclSuccess || result == ncclInProgress) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
        result = asked == ncclSuccess ? state : asked;
      }
      if (result == ncclSuccess && done()) return;
      if (result != ncclSuccess && result != ncclInProgress) {
        const std::string reason = store_.abort_reason();
        const char* detail = ncclGetLastError(communicator_);
        end(operation, label,
            reason.empty() ? concat("NCCL says: ", ncclGetErrorString(result), "; ", detail == nullptr ? "" : detail)
                           : reason);
      }
      const auto now = Clock::now();
      if (now >= next_look) {
        next_look = now + kStorePeriod;
        const std::string reason = store_.abort_reason();
        if (!reason.empty()) end(operation, label, reason);
      }
      if (now - start > options_.timeout) {
        const std::string absent =
            operation == "join"
                ? concat("did not come: ", store_.missing_ranks())
                : concat("not in this call: ", store_.ranks_not_waiting(concat(operation, " #", sequence_)));
        end(operation, label, concat("no end after ", options_.timeout.count(), " ms; ", absent));
      }
      if (now - start > kSpin) std::this_thread::sleep_for(kNap);
    }
  }

  /// Ends the group for this rank, tells the peers, throws.
  [[noreturn]] void end(const std::string& operation, const std::string& label, const std::string& reason) {
    ended_ = concat("NCCL ", operation, label.empty() ? "" : concat(" \"", label, "\""), " on rank ", rank(), " of ",
                    size(), " in group \"", options_.group_name, "\": ", reason,
                    sequence_ == 0 ? "" : "; last calls: ", sequence_ == 0 ? "" : recorder_->describe());
    if (store_.abort_reason().empty()) store_.set_abort_reason(concat("rank ", rank(), " ended the group: ", reason));
    if (communicator_ != nullptr) ncclCommAbort(std::exchange(communicator_, nullptr));
    throw Error(ended_);
  }

  NcclOptions options_;
  at::Device device_;
  NcclGroupStore store_;
  cudaEvent_t event_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  uint64_t sequence_ = 0;  // of the newest call in the flight recorder
  std::string ended_;      // why, once the group has ended
};

}  // namespace

std::unique_ptr<Collectives> create_nccl_collectives(const NcclOptions& options) {
  return std::make_unique<NcclCollectives>(options);
}

void register_cuda() {
  ops::register_cuda_ops();
  nccl_factory() = &create_nccl_collectives;
}

}  // namespace troupe
