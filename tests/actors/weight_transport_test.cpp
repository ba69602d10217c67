// Weights between processes: whole and right or not at all, one hashing for everybody, nobody waits for the slow.
#include <zmq.hpp>

#include "actors/weight_manifest.h"
#include "actors/weight_publisher.h"
#include "actors/weight_subscriber.h"
#include "base/error.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

using Milliseconds = std::chrono::milliseconds;

ModelConfig small_config() {
  return parse_model_config({{"architectures", {"LlamaForCausalLM"}},
                             {"model_type", "llama"},
                             {"vocab_size", 64},
                             {"hidden_size", 64},
                             {"intermediate_size", 128},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", 2},
                             {"num_key_value_heads", 2},
                             {"head_dim", 32},
                             {"max_position_embeddings", 64},
                             {"rms_norm_eps", 1e-5},
                             {"rope_theta", 10000.0},
                             {"hidden_act", "silu"},
                             {"tie_word_embeddings", true}});
}

WeightSnapshot make_snapshot(const ModelConfig& config, int64_t version, double value) {
  WeightSnapshot snapshot{version, {}};
  for (const auto& spec : parameter_specs(config)) {
    auto tensor = at::empty(spec.shape, at::kFloat);
    auto* values = tensor.data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = static_cast<float>(value + 0.001 * static_cast<double>(i));
    snapshot.tensors[spec.name] = tensor;
  }
  return snapshot;
}
WeightSnapshotPointer share(WeightSnapshot snapshot) {
  return std::make_shared<const WeightSnapshot>(std::move(snapshot));
}

bool is_same(const WeightSnapshot& a, const WeightSnapshot& b) {
  if (a.version != b.version || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors)
    if (!b.tensors.contains(name) || !at::equal(tensor, b.tensors.at(name))) return false;
  return true;
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Feeds a whole version, after `spoil` has had its way with the bytes of each tensor.
WeightSnapshot assemble(WeightAssembler& assembler, const WeightSnapshot& snapshot,
                        const std::function<void(size_t tensor, std::vector<std::byte>&)>& spoil = {}) {
  const auto manifest = make_manifest(snapshot);
  assembler.begin(parse_manifest(to_json(manifest)));
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const auto whole = bytes_of(snapshot.tensors.at(manifest.tensors[t].name));
    std::vector<std::byte> bytes(whole.begin(), whole.end());
    if (spoil) spoil(t, bytes);
    const auto half = bytes.size() / 2;
    assembler.chunk(t, 0, std::span(bytes).first(half));
    assembler.chunk(t, half, std::span(bytes).subspan(half));
  }
  return assembler.end();
}

/// What a worker holds; waits have a limit.
class Shelf {
 public:
  void put(WeightSnapshot snapshot) {
    const std::lock_guard lock(mutex_);
    versions.push_back(snapshot.version);
    newest = std::move(snapshot);
    changed_.notify_all();
  }
  bool wait_for(int64_t version) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return newest.version >= version; });
  }
  std::vector<int64_t> versions;
  WeightSnapshot newest{-1, {}};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

WeightSubscriberOptions subscribe(const WeightPublisher& publisher, const std::string& ticket, Shelf& shelf) {
  WeightSubscriberOptions options;
  options.endpoint = concat("tcp://127.0.0.1:", publisher.port());
  options.ticket = ticket;
  options.on_weights = [&shelf](WeightSnapshot snapshot) { shelf.put(std::move(snapshot)); };
  return options;
}

template <class F>
bool wait_until(F&& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return done();
}

}  // namespace

TEST_CASE("a manifest says what travels, and refuses what does not fit the model") {
  const auto config = small_config();
  const auto snapshot = make_snapshot(config, 7, 0.5);
  const auto manifest = make_manifest(snapshot);
  CHECK((parse_manifest(to_json(manifest)) == manifest));
  CHECK(manifest.tensors[0].xxh3_128 == xxh3_128(bytes_of(snapshot.tensors.at(manifest.tensors[0].name))));
  auto json = to_json(manifest);
  json["tensors"][0]["bytes"] = 3;
  CHECK_THROWS_WITH_AS(parse_manifest(json), doctest::Contains("does not fit its shape"), Error);
  json = to_json(manifest);
  json["tensors"][0]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
  CHECK_THROWS_WITH_AS(parse_manifest(json), doctest::Contains("too large"), Error);
  CHECK_THROWS_WITH_AS(parse_manifest({{"format", 2}}), doctest::Contains("format"), Error);
  WeightAssembler assembler(config);
  auto other = manifest;
  other.tensors[0].name = "secret";
  CHECK_THROWS_WITH_AS(assembler.begin(other), doctest::Contains("secret does not belong"), Error);
  other = manifest;
  other.tensors.pop_back();
  CHECK_THROWS_WITH_AS(assembler.begin(other), doctest::Contains("is missing"), Error);
  CHECK_FALSE(assembler.is_under_way());
}

TEST_CASE(
    "B053 a version with one wrong bit, a missing or a misplaced piece is refused as a whole; the next is taken") {
  const auto config = small_config();
  const auto snapshot = make_snapshot(config, 2, 1.0);
  const auto second = make_manifest(snapshot).tensors[1].name;
  WeightAssembler assembler(config);
  CHECK_THROWS_WITH_AS(assemble(assembler, snapshot,
                                [](size_t tensor, std::vector<std::byte>& bytes) {
                                  if (tensor == 1) bytes[5] ^= std::byte{1};
                                }),
                       doctest::Contains(second.c_str()), Error);
  CHECK_FALSE(assembler.is_under_way());
  assembler.begin(make_manifest(snapshot));
  CHECK_THROWS_WITH_AS(assembler.end(), doctest::Contains("of tensor"), Error);
  assembler.begin(make_manifest(snapshot));
  CHECK_THROWS_WITH_AS(assembler.chunk(0, 8, std::vector<std::byte>(4)), doctest::Contains("after 0 of"), Error);
  CHECK_THROWS_WITH_AS(assembler.chunk(99, 0, {}), doctest::Contains("number 99"), Error);
  CHECK(is_same(assemble(assembler, snapshot), snapshot));
}

TEST_CASE("B051 three subscribers get A, B and A again from one hashing each; a late one gets the newest at once") {
  const auto config = small_config();
  WeightPublisher publisher({"127.0.0.1", 0, Milliseconds(5000)});
  Shelf shelves[3], late_shelf;
  std::vector<std::unique_ptr<WeightSubscriber>> subscribers;
  for (auto& shelf : shelves)
    subscribers.push_back(std::make_unique<WeightSubscriber>(config, subscribe(publisher, publisher.admit(), shelf)));
  for (int64_t version = 1; version <= 3; ++version) {
    const auto snapshot = share(make_snapshot(config, version, version == 2 ? -3.0 : 1.0));
    publisher.publish(snapshot);
    for (auto& shelf : shelves) {
      REQUIRE(shelf.wait_for(version));
      CHECK(is_same(shelf.newest, *snapshot));
    }
    CHECK(publisher.num_serialized() == version);
  }
  WeightSubscriber late(config, subscribe(publisher, publisher.admit(), late_shelf));
  REQUIRE(late_shelf.wait_for(3));
  CHECK((late_shelf.versions == std::vector<int64_t>{3}));
  CHECK(wait_until([&] { return publisher.num_applied() == 10; }));
  CHECK(publisher.num_serialized() == 3);
  CHECK(publisher.num_mismatches() == 0);
}

TEST_CASE("a slow subscriber skips to the newest version and holds nobody back") {
  const auto config = small_config();
  WeightPublisher publisher({"127.0.0.1", 0, Milliseconds(20'000)});
  Shelf quick_shelf, slow_shelf;
  std::mutex gate;
  gate.lock();
  auto slow_options = subscribe(publisher, publisher.admit(), slow_shelf);
  std::atomic<bool> is_held{false};
  slow_options.on_weights = [&](WeightSnapshot snapshot) {
    is_held = true;
    const std::lock_guard wait(gate);
    slow_shelf.put(std::move(snapshot));
  };
  WeightSubscriber quick(config, subscribe(publisher, publisher.admit(), quick_shelf)), slow(config, slow_options);
  publisher.publish(share(make_snapshot(config, 1, 1)));
  CHECK(wait_until([&] { return is_held.load(); }));
  for (int64_t version = 2; version <= 5; ++version) {
    publisher.publish(share(make_snapshot(config, version, 1.0)));
    REQUIRE(quick_shelf.wait_for(version));
  }
  gate.unlock();
  REQUIRE(slow_shelf.wait_for(5));
  CHECK((slow_shelf.versions == std::vector<int64_t>{1, 5}));
}

TEST_CASE("B116 a worker that comes back under a new name gets what it asks for, and its old name gets nothing") {
  const auto config = small_config();
  WeightPublisher publisher({"127.0.0.1", 0, Milliseconds(20'000)});
  Shelf before, after;
  const auto old_ticket = publisher.admit();
  auto worker = std::make_unique<WeightSubscriber>(config, subscribe(publisher, old_ticket, before));
  for (int64_t version = 1; version <= 10; ++version) {
    if (version == 6) {  // it falls in the middle of its asking, without a word
      worker.reset();
      publisher.revoke(old_ticket);
      worker = std::make_unique<WeightSubscriber>(config, subscribe(publisher, publisher.admit(), after));
    }
    publisher.publish(share(make_snapshot(config, version, 1)));
    REQUIRE((version < 6 ? before : after).wait_for(version));
  }
  CHECK((before.versions == std::vector<int64_t>{1, 2, 3, 4, 5}));
  CHECK(after.versions.size() >= 5);  // the fifth may have been taken anew
  CHECK(after.versions.back() == 10);
  const auto num_strangers = publisher.num_strangers();
  WeightSubscriber former(config, subscribe(publisher, old_ticket, before));
  CHECK(wait_until([&] { return publisher.num_strangers() > num_strangers; }));
  CHECK(before.versions.size() == 5);
}

TEST_CASE("nobody is served without a valid ticket, and noise is counted, not obeyed") {
  const auto config = small_config();
  WeightPublisher publisher({"127.0.0.1", 0, Milliseconds(5000)});
  publisher.publish(share(make_snapshot(config, 1, 1)));
  const auto revoked = publisher.admit();
  publisher.revoke(revoked);
  Shelf nothing, something;
  WeightSubscriber stranger(config, subscribe(publisher, "0123", nothing));
  WeightSubscriber former(config, subscribe(publisher, revoked, nothing));
  zmq::context_t context;
  zmq::socket_t noise(context, zmq::socket_type::dealer);
  noise.set(zmq::sockopt::linger, 0);
  noise.connect(concat("tcp://127.0.0.1:", publisher.port()));
  for (const char* words : {"", "{", "[]", R"({"op":"want"})", R"({"op":"more","count":5})", R"({"op":7})"})
    noise.send(zmq::buffer(std::string_view(words)), zmq::send_flags::none);
  CHECK(wait_until([&] { return publisher.num_strangers() >= 8; }));
  WeightSubscriber guest(config, subscribe(publisher, publisher.admit(), something));
  CHECK(something.wait_for(1));
  CHECK(nothing.versions.empty());
}

TEST_CASE("B051 a sender that stops in the middle leaves the old version, and the next one is taken whole") {
  const auto config = small_config();
  zmq::context_t context;
  zmq::socket_t sender(context, zmq::socket_type::router);
  sender.set(zmq::sockopt::linger, 0);
  sender.set(zmq::sockopt::rcvtimeo, 20'000);
  sender.bind("tcp://127.0.0.1:*");
  Shelf shelf;
  WeightSubscriberOptions options;
  options.endpoint = sender.get(zmq::sockopt::last_endpoint);
  options.silence_limit = Milliseconds(200);
  options.on_weights = [&shelf](WeightSnapshot snapshot) { shelf.put(std::move(snapshot)); };
  WeightSubscriber subscriber(config, options);
  const auto snapshot = make_snapshot(config, 4, 2.0);
  const auto manifest = make_manifest(snapshot);
  const auto hear = [&](const std::string& op) {
    while (true) {
      zmq::message_t identity, words;
      REQUIRE(sender.recv(identity));
      REQUIRE(sender.recv(words));
      if (nlohmann::json::parse(words.to_string_view()).at("op") == op) return identity.to_string();
    }
  };
  const auto say = [&](const std::string& identity, const nlohmann::json& words, const Tensor* bytes = nullptr) {
    sender.send(zmq::buffer(identity), zmq::send_flags::sndmore);
    sender.send(zmq::buffer(words.dump()), bytes ? zmq::send_flags::sndmore : zmq::send_flags::none);
    if (bytes != nullptr)
      sender.send(zmq::const_buffer(bytes->const_data_ptr(), bytes->nbytes()), zmq::send_flags::none);
  };
  auto who = hear("want");
  say(who, {{"op", "begin"}, {"manifest", to_json(manifest)}});
  say(who, {{"op", "chunk"}, {"tensor", 0}, {"offset", 0}}, &snapshot.tensors.at(manifest.tensors[0].name));
  hear("ack");  // of the failure
  CHECK(subscriber.version() == -1);
  CHECK(subscriber.num_failures() == 1);
  CHECK(shelf.versions.empty());
  who = hear("want");
  say(who, {{"op", "begin"}, {"manifest", to_json(manifest)}});
  for (size_t t = 0; t < manifest.tensors.size(); ++t)
    say(who, {{"op", "chunk"}, {"tensor", t}, {"offset", 0}}, &snapshot.tensors.at(manifest.tensors[t].name));
  say(who, {{"op", "end"}, {"version", 4}});
  REQUIRE(shelf.wait_for(4));
  CHECK(is_same(shelf.newest, snapshot));
}

}  // namespace troupe
