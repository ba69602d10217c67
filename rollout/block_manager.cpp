#include "rollout/block_manager.h"

#include <algorithm>

#include "base/error.h"

namespace troupe {

size_t BlockManager::KeyHash::operator()(const Key& key) const {
  uint64_t hash = static_cast<uint64_t>(key.version) * 0x9E3779B97F4A7C15u ^ key.parent;
  for (const int32_t token : key.tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

BlockManager::BlockManager(int64_t num_blocks, int64_t block_tokens)
    : block_tokens_(block_tokens), blocks_(num_blocks) {
  require(num_blocks > 0 && block_tokens > 0, "KV cache: ", num_blocks, " blocks of ", block_tokens, " tokens");
}

int64_t BlockManager::num_available() const {
  return static_cast<int64_t>(free_.size() + cached_.size() + (blocks_.size() - next_unused_));
}

int32_t BlockManager::allocate() {
  // Past a quarter of the cache, old prefixes are given up before memory that was never touched is.
  const bool cache_is_large = cached_.size() > std::max<size_t>(64, blocks_.size() / 4);
  int32_t block = -1;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (next_unused_ < static_cast<int32_t>(blocks_.size()) && !cache_is_large) {
    block = next_unused_++;
  } else if (!cached_.empty()) {
    block = evict();
  } else {
    return -1;
  }
  blocks_[block].references = 1;
  return block;
}

void BlockManager::share(int32_t block) {
  require(blocks_[block].references > 0, "KV cache: block ", block, " has no owner to share with");
  ++blocks_[block].references;
}

void BlockManager::release(int32_t block) {
  Block& b = blocks_[block];
  require(b.references > 0, "KV cache: block ", block, " was released more often than taken");
  if (--b.references > 0) return;
  if (b.identity != 0) {
    b.cached = cached_.insert(cached_.end(), block);
  } else {
    free_.push_back(block);
  }
}

int32_t BlockManager::find(int64_t version, uint64_t parent, std::span<const int32_t> tokens) {
  const auto found = index_.find(Key{version, parent, {tokens.begin(), tokens.end()}});
  if (found == index_.end()) return -1;
  Block& b = blocks_[found->second];
  if (b.references++ == 0) cached_.erase(b.cached);
  ++num_hits_;
  return found->second;
}

void BlockManager::publish(int32_t block, int64_t version, uint64_t parent, std::span<const int32_t> tokens) {
  Block& b = blocks_[block];
  require(b.references > 0 && b.identity == 0 && static_cast<int64_t>(tokens.size()) == block_tokens_,
          "KV cache: block ", block, " cannot be published");
  const auto [entry, added] = index_.emplace(Key{version, parent, {tokens.begin(), tokens.end()}}, block);
  if (!added) return;
  b.entry = entry;
  b.identity = ++last_identity_;
}

void BlockManager::forget(int32_t block) {
  index_.erase(blocks_[block].entry);
  blocks_[block].identity = 0;
}

int32_t BlockManager::evict() {
  const int32_t block = cached_.front();
  cached_.pop_front();
  forget(block);
  return block;
}

void BlockManager::forget_all() {
  while (!cached_.empty()) free_.push_back(evict());
  while (!index_.empty()) forget(index_.begin()->second);
}

}  // namespace troupe
