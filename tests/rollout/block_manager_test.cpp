// Ownership of cache blocks against a model: counts, sharing by content and version, eviction, no leak.
#include <map>
#include <set>

#include "base/error.h"
#include "base/philox.h"
#include "rollout/block_manager.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

using Tokens = std::vector<int32_t>;

TEST_CASE("blocks are given out once, shared, and come back with the last release") {
  BlockManager blocks(3, 4);
  CHECK(blocks.num_blocks_for(0) == 0);
  CHECK(blocks.num_blocks_for(4) == 1);
  CHECK(blocks.num_blocks_for(5) == 2);
  const int32_t a = blocks.allocate(), b = blocks.allocate(), c = blocks.allocate();
  CHECK((std::set<int32_t>{a, b, c} == std::set<int32_t>{0, 1, 2}));
  CHECK(blocks.allocate() == -1);
  blocks.share(b);
  blocks.release(b);
  CHECK(blocks.num_available() == 0);
  blocks.release(b);
  CHECK(blocks.num_available() == 1);
  CHECK(blocks.allocate() == b);
  blocks.release(a);
  CHECK_THROWS_AS(blocks.release(a), Error);
  CHECK_THROWS_AS(blocks.share(a), Error);
  CHECK_THROWS_AS(BlockManager(0, 4), Error);
  CHECK_THROWS_AS(BlockManager(4, 0), Error);
}

TEST_CASE("a prefix is found by version, what stands before it, and its own tokens") {
  BlockManager blocks(8, 2);
  const int32_t first = blocks.allocate(), second = blocks.allocate();
  blocks.publish(first, 5, 0, Tokens{1, 2});
  blocks.publish(second, 5, blocks.identity(first), Tokens{1, 2});
  CHECK(blocks.find(4, 0, Tokens{1, 2}) == -1);
  CHECK(blocks.find(5, 0, Tokens{1, 3}) == -1);
  CHECK(blocks.find(5, 77, Tokens{1, 2}) == -1);
  CHECK(blocks.num_hits() == 0);
  CHECK(blocks.find(5, 0, Tokens{1, 2}) == first);
  CHECK(blocks.find(5, blocks.identity(first), Tokens{1, 2}) == second);
  CHECK(blocks.num_hits() == 2);
  // An equal block of another sequence does not take its place.
  const int32_t twin = blocks.allocate();
  blocks.publish(twin, 5, 0, Tokens{1, 2});
  CHECK(blocks.identity(twin) == 0);
  CHECK_THROWS_AS(blocks.publish(twin, 5, 0, Tokens{1, 2, 3}), Error);
  CHECK_THROWS_AS(blocks.publish(first, 5, 0, Tokens{9, 9}), Error);  // findable already
  blocks.forget_all();
  CHECK(blocks.find(5, 0, Tokens{1, 2}) == -1);
  for (const int32_t block : {first, first, second, second, twin}) blocks.release(block);
  CHECK(blocks.num_available() == 8);
}

TEST_CASE("cached blocks stay findable until room is needed, the longest unused goes first") {
  BlockManager blocks(3, 1);
  std::vector<int32_t> owned;
  for (int32_t token = 0; token < 3; ++token) {
    owned.push_back(blocks.allocate());
    blocks.publish(owned.back(), 1, 0, Tokens{token});
  }
  for (const int32_t block : owned) blocks.release(block);
  CHECK(blocks.num_available() == 3);
  CHECK(blocks.find(1, 0, Tokens{0}) == owned[0]);  // used again: now the youngest
  blocks.release(owned[0]);
  CHECK(blocks.allocate() == owned[1]);
  CHECK(blocks.find(1, 0, Tokens{1}) == -1);
  CHECK(blocks.find(1, 0, Tokens{0}) == owned[0]);
  CHECK(blocks.find(1, 0, Tokens{2}) == owned[2]);
  CHECK(blocks.allocate() == -1);
}

TEST_CASE("10,000 random operations agree with a model and leak nothing") {
  constexpr int64_t kBlocks = 37;
  BlockManager blocks(kBlocks, 2);
  struct Key {
    int64_t version;
    uint64_t parent;
    Tokens tokens;
    auto operator<=>(const Key&) const = default;
  };
  std::map<int32_t, int> references;  // owned blocks
  std::map<int32_t, Key> content;     // of findable blocks, owned or cached
  std::map<Key, int32_t> findable;
  std::vector<int32_t> owners;  // one entry a reference
  uint32_t counter = 0;
  const auto random = [&](uint64_t limit) {
    return static_cast<int64_t>(random_words(9, 0, ++counter, RandomStream::kDataOrder)[0] % limit);
  };
  int64_t num_hits = 0, num_full = 0, num_evicted = 0;
  for (int step = 0; step < 10000; ++step) {
    const int64_t action = random(100);
    const auto pick = [&] { return owners[random(owners.size())]; };
    if (action < 33) {
      const int32_t block = blocks.allocate();
      if (block < 0) {
        CHECK(references.size() == kBlocks);
        ++num_full;
      } else {
        CHECK(references.count(block) == 0);
        if (const auto old = content.find(block); old != content.end()) {  // evicted
          findable.erase(old->second);
          content.erase(old);
          ++num_evicted;
        }
        references[block] = 1;
        owners.push_back(block);
      }
    } else if (action < 45 && !owners.empty()) {
      const int32_t block = pick();
      blocks.share(block);
      ++references[block];
      owners.push_back(block);
    } else if (action < 60) {
      const uint64_t parent = content.empty() || random(3) == 0 ? 0 : blocks.identity(content.begin()->first);
      const Key key{random(2), parent, {static_cast<int32_t>(random(8)), 0}};
      const int32_t block = blocks.find(key.version, key.parent, key.tokens);
      const auto expected = findable.find(key);
      REQUIRE(block == (expected == findable.end() ? -1 : expected->second));
      if (block >= 0) {
        ++num_hits;
        ++references[block];
        owners.push_back(block);
      }
    } else if (action < 75 && !owners.empty()) {
      const int32_t block = pick();
      if (content.count(block) > 0) continue;
      const uint64_t parent = content.empty() || random(3) == 0 ? 0 : blocks.identity(content.begin()->first);
      const Key key{random(2), parent, {static_cast<int32_t>(random(8)), 0}};
      blocks.publish(block, key.version, key.parent, key.tokens);
      if (findable.emplace(key, block).second) content[block] = key;
    } else if (action == 99 && random(20) == 0) {
      blocks.forget_all();
      findable.clear();
      content.clear();
    } else if (!owners.empty()) {
      const int64_t index = random(owners.size());
      const int32_t block = owners[index];
      blocks.release(block);
      owners.erase(owners.begin() + index);
      if (--references[block] == 0) references.erase(block);
    }
    REQUIRE(blocks.num_available() == kBlocks - static_cast<int64_t>(references.size()));
    for (const auto& [block, key] : content) REQUIRE(blocks.identity(block) != 0);
  }
  CHECK(num_hits > 100);
  CHECK(num_full > 100);
  CHECK(num_evicted > 100);
  CHECK(blocks.num_hits() == num_hits);
  for (const int32_t block : owners) blocks.release(block);
  std::set<int32_t> all;
  for (int64_t i = 0; i < kBlocks; ++i) all.insert(blocks.allocate());
  CHECK(all.size() == kBlocks);
  CHECK(all.count(-1) == 0);
  CHECK(blocks.allocate() == -1);
}

}  // namespace
}  // namespace troupe
