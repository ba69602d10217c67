// Collectives of ranks that are threads of one process: they read each other's memory, so a call costs one pass over
// the data and two meetings. Sums go in rank order with fp32 accumulation, so a run repeats bit for bit.
#include <cstring>

#include "base/error.h"
#include "parallel/collectives.h"
#include "parallel/reduce_kernels.h"
#include "parallel/thread_group.h"

namespace troupe {
namespace {

/// Elements [begin, end) that rank `part` of `parts` works on; the cut falls on whole cache lines.
std::pair<int64_t, int64_t> split(int64_t numel, int part, int parts) {
  const int64_t chunk = ((numel + parts - 1) / parts + 63) / 64 * 64;
  return {std::min(numel, part * chunk), std::min(numel, (part + 1) * chunk)};
}

class ThreadCollectives : public Collectives {
 public:
  ThreadCollectives(std::shared_ptr<ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {
    group_->set_recorder(rank, recorder_);
  }
  ~ThreadCollectives() override { group_->fail_group(concat("rank ", rank_, " left the group")); }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void all_gather(Tensor& output, const Tensor& input, const std::string& label) override {
    check(output.numel() == input.numel() * size(), "all_gather", label, "output must hold size * input");
    check(output.is_contiguous() && input.is_contiguous() && output.scalar_type() == input.scalar_type(), "all_gather",
          label, "contiguous tensors of one dtype are needed");
    const size_t bytes = input.nbytes();
    collective(make_call("all_gather", label, output, input), output.nbytes(), [&] {
      // Own part first, then the next rank's: readers spread over the sources.
      for (int step = 0; step < size(); ++step) {
        const int peer = (rank_ + step) % size();
        auto* target = static_cast<char*>(output.data_ptr()) + static_cast<size_t>(peer) * bytes;
        const void* source = group_->call(peer).input;
        if (target != source && bytes != 0) std::memcpy(target, source, bytes);
      }
    });
  }

  void reduce_scatter(Tensor& output, const Tensor& input, const std::string& label) override {
    check(input.numel() == output.numel() * size(), "reduce_scatter", label, "input must hold size * output");
    check(output.is_contiguous() && input.is_contiguous() && output.scalar_type() == input.scalar_type(),
          "reduce_scatter", label, "contiguous tensors of one dtype are needed");
    auto call = make_call("reduce_scatter", label, output, input);
    call.numel = input.numel();
    collective(call, input.nbytes(), [&] {
      const size_t offset = static_cast<size_t>(rank_) * output.nbytes();
      std::vector<const void*> parts;
      for (int peer = 0; peer < size(); ++peer)
        parts.push_back(static_cast<const char*>(group_->call(peer).input) + offset);
      void* target = output.data_ptr();
      sum_in_order(output.scalar_type(), parts, {&target, 1}, 0, output.numel());
    });
  }

  void all_reduce(Tensor& tensor, const std::string& label) override {
    check(tensor.is_contiguous(), "all_reduce", label, "a contiguous tensor is needed");
    collective(make_call("all_reduce", label, tensor, tensor), tensor.nbytes(), [&] {
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      for (int peer = 0; peer < size(); ++peer) {
        inputs.push_back(group_->call(peer).input);
        outputs.push_back(group_->call(peer).output);
      }
      const auto [begin, end] = split(tensor.numel(), rank_, size());  // each rank sums its part for all
      if (size() > 1) sum_in_order(tensor.scalar_type(), inputs, outputs, begin, end - begin);
    });
  }

  void broadcast(Tensor& tensor, int root, const std::string& label) override {
    check(tensor.is_contiguous() && root >= 0 && root < size(), "broadcast", label,
          "a contiguous tensor and a root inside the group are needed");
    auto call = make_call("broadcast", label, tensor, tensor);
    call.root = root;
    collective(call, tensor.nbytes(), [&] {
      if (rank_ != root && tensor.nbytes() != 0)
        std::memcpy(tensor.data_ptr(), group_->call(root).input, tensor.nbytes());
    });
  }

  void all_to_all(Tensor& output, const Tensor& input, const std::vector<int64_t>& output_sizes,
                  const std::vector<int64_t>& input_sizes, const std::string& label) override {
    const auto rows = [](const Tensor& tensor) { return tensor.dim() == 0 ? 0 : tensor.size(0); };
    const auto row_of = [](const Tensor& tensor) {
      return c10::multiply_integers(tensor.sizes().slice(tensor.dim() == 0 ? 0 : 1));
    };
    const auto sum = [](const std::vector<int64_t>& sizes) { return c10::sum_integers(sizes); };
    check(output.is_contiguous() && input.is_contiguous() && output.scalar_type() == input.scalar_type() &&
              row_of(output) == row_of(input),
          "all_to_all", label, "contiguous tensors of one dtype and row shape are needed");
    check(static_cast<int>(output_sizes.size()) == size() && static_cast<int>(input_sizes.size()) == size() &&
              sum(output_sizes) == rows(output) && sum(input_sizes) == rows(input),
          "all_to_all", label, "one size a rank is needed, and they must add up to the rows");
    auto call = make_call("all_to_all", label, output, input);
    call.numel = -1;
    call.input_sizes = &input_sizes;
    call.row_elements = row_of(input);
    const size_t row_bytes = static_cast<size_t>(call.row_elements) * input.element_size();
    collective(call, static_cast<int64_t>(input.nbytes()), [&] {
      auto* target = static_cast<char*>(output.data_ptr());
      for (int peer = 0; peer < size(); ++peer) {
        const auto& theirs = group_->call(peer);
        const auto expected = output_sizes[static_cast<size_t>(peer)],
                   sent = (*theirs.input_sizes)[static_cast<size_t>(rank_)];
        if (expected != sent || theirs.row_elements != call.row_elements) {
          fail("all_to_all '", label, "': rank ", rank_, " expects ", expected, " rows of ", call.row_elements,
               " from rank ", peer, ", which sends ", sent, " of ", theirs.row_elements);
        }
        int64_t skipped = 0;
        for (int before = 0; before < rank_; ++before) skipped += (*theirs.input_sizes)[static_cast<size_t>(before)];
        const size_t bytes = static_cast<size_t>(sent) * row_bytes;
        if (bytes != 0)
          std::memcpy(target, static_cast<const char*>(theirs.input) + static_cast<size_t>(skipped) * row_bytes, bytes);
        target += bytes;
      }
    });
  }

  void send(const Tensor& tensor, int to, const std::string& label) override {
    check(to >= 0 && to < size() && to != rank_, "send", label, "another rank of the group is needed");
    point_to_point("send", label, tensor, [&] {
      group_->post(rank_, to, {label, tensor.detach().clone(at::MemoryFormat::Contiguous)}, group_->deadline());
    });
  }

  void receive(Tensor& tensor, int from, const std::string& label) override {
    check(from >= 0 && from < size() && from != rank_, "receive", label, "another rank of the group is needed");
    point_to_point("receive", label, tensor, [&] {
      const auto message = group_->take(from, rank_, group_->deadline());
      if (message.label != label || message.tensor.scalar_type() != tensor.scalar_type() ||
          message.tensor.numel() != tensor.numel()) {
        fail("rank ", rank_, " receives '", label, "' of ", tensor.numel(), " ", tensor.scalar_type(), ", but rank ",
             from, " sent '", message.label, "' of ", message.tensor.numel(), " ", message.tensor.scalar_type());
      }
      tensor.detach().copy_(message.tensor.view_as(tensor));
    });
  }

  void barrier(const std::string& label) override {
    ThreadCall call;
    call.operation = "barrier";
    call.label = label;
    collective(call, 0, [] {});
  }

  void abort(const std::string& reason) override { group_->fail_group(concat("rank ", rank_, " failed: ", reason)); }

 private:
  static ThreadCall make_call(const char* operation, const std::string& label, const Tensor& output,
                              const Tensor& input) {
    ThreadCall call;
    call.operation = operation;
    call.label = label;
    call.dtype = input.scalar_type();
    call.numel = output.numel();
    call.input = input.const_data_ptr();
    call.output = output.data_ptr();
    return call;
  }

  /// A wrong argument ends the peers too: they would wait for this rank until the time limit.
  void check(bool condition, const char* operation, const std::string& label, const char* what) {
    if (condition) return;
    const auto text = concat(operation, " '", label, "' on rank ", rank_, ": ", what);
    abort(text);
    throw Error(text);
  }

  template <class Work>
  void collective(const ThreadCall& call, int64_t bytes, const Work& work) {
    const auto sequence = recorder_->begin(call.operation, call.label, bytes);
    const auto deadline = group_->deadline();
    group_->throw_if_failed(rank_);
    group_->call(rank_) = call;
    group_->meet(rank_, deadline);
    group_->check_same(rank_);
    try {
      ThreadGroup::CopyGuard guard(*group_, rank_);
      work();
    } catch (const std::exception& error) {
      group_->fail_and_drain(error.what());  // the reason is kept only where the group had not failed before
      throw;
    }
    group_->meet(rank_, deadline);
    recorder_->end(sequence);
    log_.add({call.operation, call.label, bytes});
  }

  template <class Work>
  void point_to_point(const char* operation, const std::string& label, const Tensor& tensor, const Work& work) {
    const auto sequence = recorder_->begin(operation, label, static_cast<int64_t>(tensor.nbytes()));
    try {
      work();
    } catch (const std::exception& error) {
      group_->fail_group(error.what());
      throw;
    }
    recorder_->end(sequence);
    log_.add({operation, label, static_cast<int64_t>(tensor.nbytes())});
  }

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_thread_collectives(int size, std::chrono::milliseconds timeout) {
  require(size >= 1, "a group needs at least one rank, not ", size);
  auto group = std::make_shared<ThreadGroup>(size, timeout);
  std::vector<std::unique_ptr<Collectives>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<ThreadCollectives>(group, rank));
  return ranks;
}

}  // namespace troupe
