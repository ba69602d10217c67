// Collectives between processes over c10d's Gloo. Each call first exchanges a small header, so that ranks that ask for
// different things learn of it instead of mixing their bytes. Sums are taken here, in rank order with fp32 accumulation
// (all-to-all, then a local sum): the same bits as the collectives of threads, which Gloo's own reductions do not give.
//
// When a call fails, every rank leaves its last collectives in the store and reads the others': who left none is
// missing.
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "parallel/collectives.h"
#include "parallel/reduce_kernels.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Opens the connections to abort.
class ProcessGroup : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (auto& context : contexts_) context->closeConnections();
  }
};

/// What every rank says of its call; compared byte for byte.
struct Header {
  char text[104] = {};  // operation 'label'
  int64_t numel = 0;
  int64_t dtype = 0;
  int64_t root = -1;

  Header(const char* operation, const std::string& label, const Tensor* tensor, int root_rank = -1) : root(root_rank) {
    const auto full = concat(operation, " '", label, "'");
    std::memcpy(text, full.data(), std::min(full.size(), sizeof(text) - 1));
    if (tensor == nullptr) return;
    numel = tensor->numel();
    dtype = static_cast<int64_t>(tensor->scalar_type());
  }
  bool operator==(const Header& other) const { return std::memcmp(this, &other, sizeof(Header)) == 0; }
  std::string describe() const {
    auto result = concat(text, " of ", numel, " ", c10::toString(static_cast<at::ScalarType>(dtype)));
    return root < 0 ? result : concat(result, " from rank ", root);
  }
};
static_assert(sizeof(Header) == 128, "no padding bytes, which would compare as noise");

Tensor as_bytes(const Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}
Tensor as_bytes(Header& header) { return at::from_blob(&header, {static_cast<int64_t>(sizeof(Header))}, at::kByte); }

/// One store a name for the ranks of this process; gone with the last of them.
c10::intrusive_ptr<c10d::Store> shared_hash_store(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, c10::weak_intrusive_ptr<c10d::HashStore>> stores;
  std::lock_guard lock(mutex);
  if (const auto found = stores.find(name); found != stores.end()) {
    if (auto store = found->second.lock()) return store;
    stores.erase(found);
  }
  auto store = c10::make_intrusive<c10d::HashStore>();
  stores.emplace(name, c10::weak_intrusive_ptr<c10d::HashStore>(store));
  return store;
}

c10::intrusive_ptr<c10d::Store> open_store(const GlooOptions& options) {
  if (options.store_port == 0) return shared_hash_store(options.group_name);
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(options.store_port);
  store_options.isServer = options.rank == 0;
  store_options.waitWorkers = false;
  store_options.multiTenant = true;
  store_options.timeout = options.timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(options.store_host, store_options);
  } catch (const std::exception& error) {
    const auto address = concat(options.store_host, ":", options.store_port);
    if (options.rank == 0)
      fail("rank 0 of group '", options.group_name, "' cannot serve the store at ", address, ": ", error.what());
    fail("rank 0 of group '", options.group_name, "' did not come: no store at ", address, " within ",
         options.timeout.count(), " ms");
  }
}

class GlooCollectives : public Collectives {
 public:
  explicit GlooCollectives(const GlooOptions& options) : options_(options) {
    store_ = c10::make_intrusive<c10d::PrefixStore>(options.group_name, open_store(options));
    await_all();
    auto group_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
    group_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.interface_address));
    group_options->threads = 1;  // calls are blocking: one at a time
    group_ = c10::make_intrusive<ProcessGroup>(store_, options.rank, options.size, group_options);
  }
  ~GlooCollectives() override {
    try {
      while (!outgoing_.empty()) finish_oldest_send();
    } catch (const std::exception&) {
      // The peer is gone: it cannot want the message any more.
    }
  }
  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void all_gather(Tensor& output, const Tensor& input, const std::string& label) override {
    check(output.numel() == input.numel() * size() && is_plain(output, input), "all_gather", label);
    collective("all_gather", label, Header("all_gather", label, &output), output.nbytes(),
               [&] { gather_bytes(output, input); });
  }

  void reduce_scatter(Tensor& output, const Tensor& input, const std::string& label) override {
    check(input.numel() == output.numel() * size() && is_plain(output, input), "reduce_scatter", label);
    collective("reduce_scatter", label, Header("reduce_scatter", label, &input), input.nbytes(),
               [&] { scatter_sum(output, input); });
  }

  void all_reduce(Tensor& tensor, const std::string& label) override {
    check(tensor.is_contiguous(), "all_reduce", label);
    collective("all_reduce", label, Header("all_reduce", label, &tensor), tensor.nbytes(), [&] {
      const int64_t part = (tensor.numel() + size() - 1) / size();
      auto whole = at::zeros({part * size()}, tensor.options());
      whole.narrow(0, 0, tensor.numel()).copy_(tensor.detach().reshape({-1}));
      auto own = at::empty({part}, tensor.options());
      scatter_sum(own, whole);
      gather_bytes(whole, own);
      tensor.detach().copy_(whole.narrow(0, 0, tensor.numel()).view_as(tensor));
    });
  }

  void broadcast(Tensor& tensor, int root, const std::string& label) override {
    check(tensor.is_contiguous() && root >= 0 && root < size(), "broadcast", label);
    collective("broadcast", label, Header("broadcast", label, &tensor, root), tensor.nbytes(), [&] {
      if (tensor.nbytes() == 0) return;
      std::vector<Tensor> tensors{as_bytes(tensor)};
      c10d::BroadcastOptions broadcast_options;
      broadcast_options.rootRank = root;
      start([&] { return group_->broadcast(tensors, broadcast_options); })->wait();
    });
  }

  void all_to_all(Tensor& output, const Tensor& input, const std::vector<int64_t>& output_sizes,
                  const std::vector<int64_t>& input_sizes, const std::string& label) override {
    const int64_t row = c10::multiply_integers(input.sizes().slice(1));
    check(is_plain(output, input) && row == c10::multiply_integers(output.sizes().slice(1)) &&
              static_cast<int>(output_sizes.size()) == size() && static_cast<int>(input_sizes.size()) == size() &&
              c10::sum_integers(output_sizes) == output.size(0) && c10::sum_integers(input_sizes) == input.size(0),
          "all_to_all", label);
    Header header("all_to_all", label, nullptr);
    header.numel = row;  // of a row: ranks send different numbers of them
    header.dtype = static_cast<int64_t>(input.scalar_type());
    collective("all_to_all", label, header, input.nbytes(), [&] {
      const auto sent = at::tensor(input_sizes, at::kLong);
      auto table = at::empty({size(), size()}, at::kLong);
      gather_bytes(table, sent);
      for (int peer = 0; peer < size(); ++peer) {
        const auto theirs = table[peer][rank()].item<int64_t>();
        require(theirs == output_sizes[static_cast<size_t>(peer)], "all_to_all '", label, "': rank ", rank(),
                " expects ", output_sizes[static_cast<size_t>(peer)], " rows from rank ", peer, ", which sends ",
                theirs);
      }
      const auto row_bytes = row * static_cast<int64_t>(input.element_size());
      exchange(output, input, to_bytes(output_sizes, row_bytes), to_bytes(input_sizes, row_bytes));
    });
  }

  void send(const Tensor& tensor, int to, const std::string& label) override {
    check(to >= 0 && to < size() && to != rank(), "send", label);
    guarded("send", label, tensor.nbytes(), [&] {
      while (outgoing_.size() >= 2 * kMaxMessages) finish_oldest_send();
      auto header = at::empty({static_cast<int64_t>(sizeof(Header))}, at::kByte);
      const Header content("message", label, &tensor);
      std::memcpy(header.data_ptr(), &content, sizeof(Header));
      start_send(header, to);
      if (tensor.nbytes() != 0) start_send(as_bytes(tensor.contiguous()).clone(), to);
    });
  }

  void receive(Tensor& tensor, int from, const std::string& label) override {
    check(from >= 0 && from < size() && from != rank(), "receive", label);
    guarded("receive", label, tensor.nbytes(), [&] {
      const Header expected("message", label, &tensor);
      Header header = expected;
      receive_bytes(as_bytes(header), from);
      require(header == expected, "rank ", rank(), " expects ", expected.describe(), ", but rank ", from, " sent ",
              header.describe());
      auto arrived = at::empty(tensor.sizes(), tensor.options());
      if (tensor.nbytes() != 0) receive_bytes(as_bytes(arrived), from);
      tensor.detach().copy_(arrived);
    });
  }

  void barrier(const std::string& label) override {
    collective("barrier", label, Header("barrier", label, nullptr), 0, [] {});
  }

  void abort(const std::string& reason) override {
    if (is_closed_.exchange(true)) return;
    try {
      store_->set("abort", concat("rank ", rank(), " failed: ", reason));
    } catch (const std::exception&) {
      // The store is gone with rank 0; the closed connections still end the peers.
    }
    group_->close();
  }

 private:
  static constexpr size_t kMaxMessages = 64;
  static constexpr milliseconds kPostmortem{300};  // how long a failed rank waits for the others' last words

  /// Time limit of the rendezvous; names who did not come.
  void await_all() {
    store_->set(concat("arrived/", rank()), std::string("1"));
    const auto deadline = Clock::now() + options_.timeout;
    for (int peer = 0; peer < size(); ++peer) {
      const auto left = std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
      try {
        store_->wait({concat("arrived/", peer)}, left);
      } catch (const std::exception&) {
        std::string missing;
        for (int other = peer; other < size(); ++other) {
          if (!has(concat("arrived/", other))) missing += concat(missing.empty() ? "" : ", ", other);
        }
        fail("group '", options_.group_name, "': rank ", missing, " of ", size(), " did not come within ",
             options_.timeout.count(), " ms");
      }
    }
  }

  bool has(const std::string& key) {
    try {
      return store_->check({key});
    } catch (const std::exception&) {
      return false;
    }
  }

  static bool is_plain(const Tensor& output, const Tensor& input) {
    return output.is_contiguous() && input.is_contiguous() && output.scalar_type() == input.scalar_type();
  }

  void check(bool condition, const char* operation, const std::string& label) {
    if (condition) return;
    const auto text =
        concat(operation, " '", label, "' on rank ", rank(), ": sizes, dtypes or ranks of the arguments do not fit");
    abort(text);
    throw Error(text);
  }

  /// Hands one operation to Gloo. c10d (2.11) notes each in a map of the whole process that it changes without a lock,
  /// so several groups in one process crash unless they take turns here; waiting for the operation needs no turn.
  template <class Operation>
  static c10::intrusive_ptr<c10d::Work> start(const Operation& operation) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    return operation();
  }

  void gather_bytes(Tensor& output, const Tensor& input) {
    if (input.nbytes() == 0) return;
    auto target = as_bytes(output), source = as_bytes(input);
    start([&] { return group_->_allgather_base(target, source); })->wait();
  }

  static std::vector<int64_t> to_bytes(const std::vector<int64_t>& sizes, int64_t row_bytes) {
    std::vector<int64_t> bytes;
    for (const auto size : sizes) bytes.push_back(size * row_bytes);
    return bytes;
  }

  void exchange(Tensor& output, const Tensor& input, std::vector<int64_t> output_bytes,
                std::vector<int64_t> input_bytes) {
    auto target = as_bytes(output), source = as_bytes(input);
    start([&] { return group_->alltoall_base(target, source, output_bytes, input_bytes); })->wait();
  }

  void scatter_sum(Tensor& output, const Tensor& input) {
    if (output.nbytes() == 0) return;
    auto arrived = at::empty({size(), output.numel()}, output.options());
    exchange(arrived, input, {}, {});
    std::vector<const void*> parts;
    for (int peer = 0; peer < size(); ++peer)
      parts.push_back(static_cast<const char*>(arrived.data_ptr()) + static_cast<size_t>(peer) * output.nbytes());
    void* target = output.data_ptr();
    sum_in_order(output.scalar_type(), parts, {&target, 1}, 0, output.numel());
  }

  void start_send(Tensor bytes, int to) {
    std::vector<Tensor> tensors{bytes};
    outgoing_.push_back(start([&] { return group_->send(tensors, to, 0); }));
  }
  void finish_oldest_send() {
    outgoing_.front()->wait(options_.timeout);
    outgoing_.pop_front();
  }
  void receive_bytes(Tensor bytes, int from) {
    std::vector<Tensor> tensors{bytes};
    start([&] { return group_->recv(tensors, from, 0); })->wait(options_.timeout);
  }

  void compare_headers(Header header) {
    std::vector<Header> all(static_cast<size_t>(size()), header);
    auto target = at::from_blob(all.data(), {static_cast<int64_t>(sizeof(Header)) * size()}, at::kByte);
    auto source = as_bytes(header);
    start([&] { return group_->_allgather_base(target, source); })->wait();
    for (int peer = 1; peer < size(); ++peer) {
      if (all[static_cast<size_t>(peer)] == all[0]) continue;
      fail("ranks ask for different collectives: rank 0 ", all[0].describe(), ", rank ", peer, " ",
           all[static_cast<size_t>(peer)].describe());
    }
  }

  template <class Work>
  void collective(const char* operation, const std::string& label, const Header& header, size_t bytes,
                  const Work& work) {
    guarded(operation, label, bytes, [&] {
      compare_headers(header);
      work();
    });
  }

  template <class Work>
  void guarded(const char* operation, const std::string& label, size_t bytes, const Work& work) {
    const auto sequence = recorder_->begin(operation, label, static_cast<int64_t>(bytes));
    try {
      if (is_closed_) fail("the group was aborted");
      work();
    } catch (const Error& error) {
      abort(error.what());
      throw Error(
          concat("rank ", rank(), ", ", recorder_->describe(1), ": ended because ", abort_reason(error.what())));
    } catch (const std::exception& error) {
      explain(error.what());
    }
    recorder_->end(sequence);
    log_.add({operation, label, static_cast<int64_t>(bytes)});
  }

  std::string abort_reason(const std::string& otherwise) {
    if (!has("abort")) return otherwise;
    const auto reason = store_->get("abort");
    return {reason.begin(), reason.end()};
  }

  /// A connection broke or the time limit passed: says who stopped, and what everybody did last.
  [[noreturn]] void explain(const std::string& what) {
    const auto running = recorder_->describe(1);
    try {
      store_->set(concat("last/", rank()), recorder_->describe(4));
    } catch (const std::exception&) {
      fail("rank ", rank(), ", ", running, ": the store is gone, so rank 0 is (", what, ")");
    }
    std::string missing, words;
    const auto deadline = Clock::now() + kPostmortem;
    for (int peer = 0; peer < size() && !has("abort"); ++peer) {
      const auto key = concat("last/", peer);
      const auto left = std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
      try {
        store_->wait({key}, left);
        const auto last = store_->get(key);
        words += concat("\n  rank ", peer, ": ", std::string(last.begin(), last.end()));
      } catch (const std::exception&) {
        missing += concat(missing.empty() ? "" : ", ", peer);
        words += concat("\n  rank ", peer, ": no answer");
      }
    }
    const auto reason = missing.empty() ? concat("the connection failed: ", what)
                                        : concat("rank ", missing, " does not answer within ", options_.timeout.count(),
                                                 " ms (", what, ")");
    const auto text = concat("rank ", rank(), ", ", running, ": ended because ", abort_reason(reason),
                             words.empty() ? "" : "; last collectives:", words);
    // Closed without the key: peers find out by themselves who is missing.
    if (!is_closed_.exchange(true)) group_->close();
    throw Error(text);
  }

  GlooOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<ProcessGroup> group_;
  std::deque<c10::intrusive_ptr<c10d::Work>> outgoing_;
  std::atomic<bool> is_closed_{false};
};

}  // namespace

std::unique_ptr<Collectives> make_gloo_collectives(const GlooOptions& options) {
  // Gloo writes to its sockets without MSG_NOSIGNAL: a peer that is gone would end this process by the default action
  // of SIGPIPE instead of an error. A handler that somebody has set stays.
  static std::once_flag once;
  std::call_once(once, [] {
    if (const auto before = std::signal(SIGPIPE, SIG_IGN); before != SIG_DFL) std::signal(SIGPIPE, before);
  });
  require(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "group '", options.group_name,
          "': rank ", options.rank, " is not one of ", options.size);
  return std::make_unique<GlooCollectives>(options);
}

}  // namespace troupe
