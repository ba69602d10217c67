// NcclGroupStore over c10d's TCP store (between processes) or hash store (between threads of this process).
#include "parallel/cuda/nccl_group.h"

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"

namespace troupe {
namespace {

constexpr const char* kAbortKey = "abort";
constexpr std::chrono::milliseconds kGrace{300};

// Ranks of one process meet by the group's name; the store dies with its last rank, so a name can be used again.
c10::intrusive_ptr<c10d::Store> process_store(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, c10::weak_intrusive_ptr<c10d::HashStore>> stores;
  const std::lock_guard lock(mutex);
  const auto found = stores.find(name);
  if (found != stores.end()) {
    if (auto store = found->second.lock()) return store;
    stores.erase(found);
  }
  auto store = c10::make_intrusive<c10d::HashStore>();
  stores.emplace(name, c10::weak_intrusive_ptr<c10d::HashStore>(store));
  return store;
}

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

NcclGroupStore::NcclGroupStore(const NcclOptions& options) : options_(options) {
  if (options.store_port == 0) {
    store_ = process_store(options.group_name);
  } else {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(options.store_port);
    tcp.isServer = options.rank == 0;
    tcp.numWorkers = static_cast<size_t>(options.size);
    tcp.waitWorkers = false;
    tcp.timeout = options.timeout;
    tcp.multiTenant = true;
    try {
      store_ = c10::make_intrusive<c10d::PrefixStore>(options.group_name,
                                                      c10::make_intrusive<c10d::TCPStore>(options.store_host, tcp));
    } catch (const std::exception& error) {
      fail("NCCL group \"", options.group_name, "\": rank ", options.rank, " cannot ",
           options.rank == 0 ? "serve" : "reach rank 0's", " store at ", options.store_host, ":", options.store_port,
           ": ", error.what());
    }
  }
  store_->setTimeout(options.timeout);
}

std::vector<uint8_t> NcclGroupStore::exchange_id(const std::vector<uint8_t>& id) {
  try {
    store_->set(concat("here/", options_.rank), to_bytes("1"));
    if (options_.rank == 0) {
      store_->set("id", id);
      return id;
    }
    return store_->get("id");
  } catch (const std::exception& error) {
    fail("NCCL group \"", options_.group_name, "\": rank ", options_.rank, " got no id from rank 0 within ",
         options_.timeout.count(), " ms (", error.what(), ")");
  }
}

std::string NcclGroupStore::ranks_without(const std::string& prefix, const std::string& value) {
  std::string ranks;
  for (int rank = 0; rank < options_.size; ++rank) {
    const std::string key = concat(prefix, rank);
    bool has_value = false;
    try {
      has_value = store_->check({key}) && (value.empty() || to_text(store_->get(key)) == value);
    } catch (const std::exception&) {
      return "unknown, as the group's store is gone";
    }
    if (!has_value) ranks += concat(ranks.empty() ? "rank " : ", rank ", rank);
  }
  return ranks.empty() ? "no rank" : ranks;
}

std::string NcclGroupStore::missing_ranks() { return ranks_without("here/", ""); }

std::string NcclGroupStore::abort_reason() {
  try {
    return store_->check({kAbortKey}) ? to_text(store_->get(kAbortKey)) : "";
  } catch (const std::exception& error) {
    return concat("the group's store, served by rank 0, is gone (", error.what(), ")");
  }
}

void NcclGroupStore::set_abort_reason(const std::string& reason) {
  try {
    store_->set(kAbortKey, to_bytes(reason));
  } catch (const std::exception&) {
    // The store went with rank 0: the peers notice that by themselves.
  }
}

std::string NcclGroupStore::ranks_not_waiting(const std::string& operation) {
  try {
    store_->set(concat("stuck/", options_.rank), to_bytes(operation));
  } catch (const std::exception&) {
    return "unknown, as the group's store is gone";
  }
  std::this_thread::sleep_for(kGrace);
  return ranks_without("stuck/", operation);
}

}  // namespace troupe
