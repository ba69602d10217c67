// Who owns which block of the KV cache, and which blocks hold a prefix that others may share. Only bookkeeping: the
// numbers themselves lie in the forward pass.
//
//            allocate                     publish (full)
//   free  ------------->  owned (refs 1)  -------------->  owned and findable  <--> shared (refs > 1)
//    ^                       |                                    | last release
//    |        release        |                                    v
//    +-----------------------+----------- evicted ------------  cached (refs 0)  --find--> shared
//
// A findable block is known by the weight version, the findable block before it, and its own token ids. The comparison
// is exact (no hash collision can hand out a wrong block), and a block of another version is never found (B048).
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace troupe {

class BlockManager {
 public:
  BlockManager(int64_t num_blocks, int64_t block_tokens);

  int64_t block_tokens() const { return block_tokens_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  /// Blocks that allocate() can give out now (free ones and cached ones that it would evict).
  int64_t num_available() const;
  int64_t num_blocks_for(int64_t num_tokens) const { return (num_tokens + block_tokens_ - 1) / block_tokens_; }

  /// A block of one's own, or -1 where none is available.
  int32_t allocate();
  /// One more owner of a block that has one.
  void share(int32_t block);
  void release(int32_t block);

  /// Identity of a findable block, 0 for others; a new one each time a block becomes findable.
  uint64_t identity(int32_t block) const { return blocks_[block].identity; }
  /// Finds the block that holds `tokens` (exactly one block of them) after the block `parent` (0: none, a sequence's
  /// start) and shares it; -1 where there is none.
  int32_t find(int64_t version, uint64_t parent, std::span<const int32_t> tokens);
  /// Makes an owned block findable. Where an equal one is known already nothing changes: the first stays.
  void publish(int32_t block, int64_t version, uint64_t parent, std::span<const int32_t> tokens);
  /// Nothing published so far is found any more (the weights have changed).
  void forget_all();
  /// Blocks found by `find` since construction, for the version asked for.
  int64_t num_hits() const { return num_hits_; }

 private:
  struct Key {
    int64_t version = 0;
    uint64_t parent = 0;
    std::vector<int32_t> tokens;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  using Index = std::unordered_map<Key, int32_t, KeyHash>;
  struct Block {
    int32_t references = 0;
    uint64_t identity = 0;
    Index::iterator entry;                // where identity != 0
    std::list<int32_t>::iterator cached;  // where references == 0 and identity != 0
  };

  void forget(int32_t block);
  int32_t evict();

  const int64_t block_tokens_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // used before and free again; taken from the back, so that few pages are touched
  int32_t next_unused_ = 0;    // blocks from here on have never been used
  std::list<int32_t> cached_;  // findable without owner, longest unused first
  Index index_;
  uint64_t last_identity_ = 0;
  int64_t num_hits_ = 0;
};

}  // namespace troupe
