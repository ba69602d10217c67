// Hashes, random numbers, packing, trajectories and files against published values and round trips.
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/bytes.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/trajectory.h"
#include "tests/doctest.h"

using namespace troupe;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Trajectory make_sample() {
  Trajectory t;
  t.group = 5;
  t.sample_id = make_sample_id(5, 3);
  t.attempt = 2;
  t.num_turns = 2;
  t.tokens = {1, 2, 3, 4, 5, 6};
  t.prompt_length = 2;
  t.loss_mask = {0, 0, 1, 0, 1, 1};
  t.log_probs = {0, 0, -0.5f, 0, -1.25f, -2};
  t.versions = {{2, 7}, {5, 8}};
  t.finish_reason = FinishReason::kStopString;
  t.completion_text = "a\0b";
  t.rewards = {{"number", 1.0, ""}, {"remote", std::nullopt, "time limit"}};
  t.total_reward = 1.0;
  t.metadata_json = R"({"answer":"42"})";
  return t;
}

}  // namespace

TEST_CASE("Philox-4x32-10 gives the published values") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox_4x32_10({0, 0, 0, 0}, 0, 0) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox_4x32_10({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) == Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox_4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u) ==
        Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("a random number depends on every part of its counter, and on nothing else") {
  const auto value = random_uniform(1, (uint64_t{3} << 40) + 2, 4, RandomStream::kSampling);
  CHECK(value == random_uniform(1, (uint64_t{3} << 40) + 2, 4, RandomStream::kSampling));
  CHECK(value >= 0);
  CHECK(value < 1);
  CHECK(value != random_uniform(2, (uint64_t{3} << 40) + 2, 4, RandomStream::kSampling));
  CHECK(value != random_uniform(1, 2, 4, RandomStream::kSampling));
  CHECK(value != random_uniform(1, (uint64_t{3} << 40) + 2, 5, RandomStream::kSampling));
  CHECK(value != random_uniform(1, (uint64_t{3} << 40) + 2, 4, RandomStream::kDataOrder));
}

TEST_CASE("XXH3-128 gives the published value of nothing, and a stream equals the whole") {
  CHECK(xxh3_128({}) == "99aa06d3014798d86001c324468d497f");
  std::string text(100000, 'x');
  text[777] = 'y';
  Hasher hasher;
  for (size_t at = 0; at < text.size(); at += 12345)
    hasher.update(bytes_of(text).subspan(at, std::min<size_t>(12345, text.size() - at)));
  CHECK(hasher.digest() == xxh3_128(bytes_of(text)));
  text[99999] = 'z';
  CHECK(hasher.digest() != xxh3_128(bytes_of(text)));
}

TEST_CASE("a trajectory survives packing; every truncation and length lie is an error") {
  const auto sample = make_sample();
  CHECK_NOTHROW(check_trajectory(sample));
  const auto packed = pack_trajectory(sample);
  CHECK(unpack_trajectory(packed) == sample);
  CHECK(sample.oldest_version() == 7);
  CHECK(sample.num_sampled_tokens() == 3);
  for (size_t size = 0; size < packed.size(); ++size)
    CHECK_THROWS_AS(unpack_trajectory(std::span(packed).first(size)), Error);
  auto longer = packed;
  longer.push_back(std::byte{0});
  CHECK_THROWS_AS(unpack_trajectory(longer), Error);
  // A single corrupted byte is either refused or gives another valid sample; it never reads outside.
  for (size_t at = 0; at < packed.size(); ++at) {
    auto corrupted = packed;
    corrupted[at] = ~corrupted[at];
    try {
      check_trajectory(unpack_trajectory(corrupted));
    } catch (const Error&) {
    }
  }
}

TEST_CASE("inconsistent trajectories are named") {
  auto broken = [](auto change) {
    auto sample = make_sample();
    change(sample);
    CHECK_THROWS_AS(check_trajectory(sample), Error);
  };
  broken([](auto& t) { t.group = 4; });
  broken([](auto& t) { t.prompt_length = 7; });
  broken([](auto& t) { t.loss_mask.pop_back(); });
  broken([](auto& t) { t.log_probs.pop_back(); });
  broken([](auto& t) { t.loss_mask[0] = 1; });
  broken([](auto& t) { t.loss_mask[2] = 2; });
  broken([](auto& t) { t.log_probs[3] = -1; });
  broken([](auto& t) { t.versions = {{5, 8}, {2, 7}}; });
  broken([](auto& t) { t.versions.clear(); });
  Trajectory empty;
  CHECK_NOTHROW(check_trajectory(empty));
  CHECK_THROWS_AS(empty.oldest_version(), Error);
}

TEST_CASE("a length that lies about the rest is refused before anything is allocated") {
  ByteWriter writer;
  writer.put<uint64_t>(std::numeric_limits<uint64_t>::max() / 4);
  const auto bytes = writer.take();
  ByteReader reader(bytes, "test");
  CHECK_THROWS_AS(reader.get_vector<int32_t>(), Error);
}

TEST_CASE("B123 memory that a round left in pieces goes back to the system") {
  HeapTrimmer trimmer;
  CHECK_FALSE(trimmer.after_round());
  const auto before = resident_memory_bytes();
  const auto block_bytes = size_t{1} << 16;
  std::vector<std::unique_ptr<std::vector<char>>> blocks;
  for (long long bytes = 0; bytes < before / 2; bytes += block_bytes)
    blocks.push_back(std::make_unique<std::vector<char>>(block_bytes, 'x'));
  const auto last = std::move(blocks.back());  // nothing below it leaves the heap by itself
  blocks.clear();
  const auto grown = resident_memory_bytes();
  REQUIRE(grown > before + before / 4);
  CHECK(trimmer.after_round());
#ifndef __SANITIZE_ADDRESS__
  CHECK(resident_memory_bytes() < before + before / 8);
#endif
  CHECK_FALSE(trimmer.after_round());  // this round is the new measure
  CHECK_FALSE(trimmer.after_round());
}

TEST_CASE("a file in pieces is the file") {
  const auto path = std::filesystem::temp_directory_path() / "troupe_pieces_test";
  std::string content(3'000'001, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 3);
  write_file_atomically(path, content);
  std::string pieces;
  Hasher hasher;
  int num_pieces = 0;
  read_file_in_pieces(path, [&](std::span<const std::byte> piece) {
    ++num_pieces;
    hasher.update(piece);
    pieces.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  CHECK(num_pieces > 1);
  CHECK((pieces == content));
  CHECK(hasher.digest() == xxh3_128(std::as_bytes(std::span(content))));
  std::filesystem::remove(path);
}

TEST_CASE("files are whole or absent, and errors name the path") {
  const auto folder = std::filesystem::temp_directory_path() / "troupe_file_test";
  std::filesystem::remove_all(folder);
  make_folders(folder / "a" / "b");
  const auto path = folder / "a" / "b" / "file";
  write_file_atomically(path, "first");
  write_file_atomically(path, std::string("sec\0nd", 6));
  CHECK(read_file(path) == std::string("sec\0nd", 6));
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "a" / "b"), {}) == 1);
  const MappedFile mapped(path);
  CHECK(mapped.bytes().size() == 6);
  MappedFile::release_pages(mapped.bytes().subspan(2));
  CHECK(std::memcmp(mapped.bytes().data(), "sec\0nd", 6) == 0);
  std::ofstream(folder / "empty");
  CHECK(MappedFile(folder / "empty").bytes().empty());
  for (const auto& bad : {folder / "nowhere", folder}) {
    CHECK_THROWS_WITH_AS(read_file(bad), doctest::Contains(bad.string().c_str()), Error);
    CHECK_THROWS_AS(MappedFile{bad}, Error);
    CHECK_THROWS_WITH_AS(read_file_in_pieces(bad, [](auto) {}), doctest::Contains(bad.string().c_str()), Error);
  }
  CHECK_THROWS_WITH_AS(write_file_atomically(path / "x", "y"), doctest::Contains("file"), Error);
  CHECK_THROWS_AS(make_folders(path / "x"), Error);
  CHECK(free_disk_bytes(folder / "not" / "yet") > 0);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a full disk is an error that names the file") {
  CHECK_THROWS_WITH_AS(write_file_synced("/dev/full", "x"), doctest::Contains("/dev/full"), Error);
}

TEST_CASE("the processor is described consistently") {
  const auto& cpu = cpu_features();
  CHECK((!cpu.avx512_bf16 || cpu.avx512));
  CHECK((!cpu.avx512 || cpu.avx2));
  CHECK(num_usable_cores() >= 1);
  CHECK(peak_memory_bytes() >= resident_memory_bytes());
  CHECK(resident_memory_bytes() > 0);
}
