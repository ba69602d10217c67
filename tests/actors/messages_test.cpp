// Every message struct survives the way through CAF's serializer as it is; what must stay in the process is marked so.
#include "actors/messages.h"

#include <caf/all.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>

#include "actors/error.h"
#include "base/trajectory.h"
#include "tests/doctest.h"

namespace troupe {
namespace {

struct Config : caf::actor_system_config {
  Config() {
    add_message_types<caf::id_block::troupe>();
    add_error_text(*this);
    set("scheduler.policy", caf::atom("testing"));
  }
};

class RoundTrip {
 public:
  template <class T>
  void check(const T& value) {
    CAPTURE(caf::type_name_by_id<caf::type_id<T>::value>::value);
    std::vector<char> bytes;
    caf::binary_serializer sink(system_, bytes);
    REQUIRE_FALSE(sink(value));
    T copy;
    caf::binary_deserializer source(system_, bytes);
    REQUIRE_FALSE(source(copy));
    CHECK((copy == value));
    CHECK_FALSE((T{} == value));  // the values below leave no field at its default
    // As an element of a message, the way that it travels between processes.
    std::vector<char> message_bytes;
    caf::binary_serializer message_sink(system_, message_bytes);
    const auto message = caf::make_message(value);
    REQUIRE_FALSE(message_sink(message));
    caf::message received;
    caf::binary_deserializer message_source(system_, message_bytes);
    REQUIRE_FALSE(message_source(received));
    REQUIRE(received.match_elements<T>());
    CHECK((received.get_as<T>(0) == value));
    // Cut off anywhere it is an error, never a struct that is half full.
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      T part;
      caf::binary_deserializer cut_source(system_, cut);
      CHECK(cut_source(part) != caf::none);
    }
    ++num_checked;
  }
  int num_checked = 0;

 private:
  Config config_;
  caf::actor_system system_{config_};
};

constexpr uint64_t kLarge = 0xfedcba9876543210;

}  // namespace

TEST_CASE("every message struct is equal to itself after serialisation, extreme values and empty lists included") {
  RoundTrip round;
  round.check(Packed{std::string("\0\xff bytes \n", 9)});
  round.check(WorkOrder{
      kLarge, -3, {0, 1, -1, 2147483647}, R"({"answer":"42 \" ä"})", {kLarge, 1}, {7, 0xffffffff}, {"", "made"}});
  round.check(SampleReport{-1, kLarge, 0xffffffff, "prompt too long: ä"});
  round.check(WorkerStatus{3, int64_t{1} << 62, 2, 3, 4, 5, 6, 7, 8, 1e-300, -0.5, 1e300});
  round.check(GroupTicket{kLarge, -7, 4095});
  round.check(GroupDrop{kLarge, "zero_variance", {1, kLarge}, {0, 3}, {2}, {"too long"}});
  round.check(StepReport{5, 6, {kLarge, 0}, R"({"loss/mean":1.5})"});
  round.check(StepDecision{true, true, true, true, true, true, R"({"step":3})", {"groups"}});
  round.check(Hello{2, "0.1.0", "token", "host:1", "ab", 0.5, 4, "reward"});
  round.check(Welcome{"no", 3, "{}", {"tokenizer.json", ""}, {std::string("\0x", 2), "y"}, "ticket", 65535, {}, {}});
  // Atoms take no ids: every id of the block is one of the structs above, and a new struct needs its line here.
  CHECK(round.num_checked == caf::id_block::troupe::end - caf::id_block::troupe::begin);
}

TEST_CASE("a trajectory travels packed and arrives as it was") {
  Trajectory t;
  t.sample_id = make_sample_id(9, 4);
  t.group = 9;
  t.attempt = 2;
  t.num_turns = 3;
  t.tokens = {1, 2, 3, 4};
  t.prompt_length = 2;
  t.loss_mask = {0, 0, 1, 1};
  t.log_probs = {0, 0, -0.5f, -1e-7f};
  t.versions = {{2, 4}, {3, 5}};
  t.finish_reason = FinishReason::kStopString;
  t.completion_text = std::string("a\0b", 3);
  t.rewards = {{"number", 1.0, ""}, {"remote", std::nullopt, "no answer"}};
  t.total_reward = 0.75;
  t.metadata_json = R"({"answer":"42"})";
  t.reference_log_probs = {0, 0, -1, -2};
  t.values = {0, 0, 1, 2};
  t.baseline_reward = -1.0;
  const auto bytes = pack_trajectory(t);
  const Packed packed{std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
  CHECK((unpack_trajectory(std::as_bytes(std::span(packed.bytes))) == t));
}

TEST_CASE("errors of the actors say their text, others CAF's") {
  Config config;
  caf::actor_system system(config);
  CHECK(describe_error(caf::make_error(ec::failed, "shard 0, step 3: boom"), system) == "shard 0, step 3: boom");
  CHECK(describe_error(caf::error(), system) == "it ended of its own accord");  // once a crash
  CHECK(describe_error(caf::make_error(ec::interrupted), system).find("interrupted") != std::string::npos);
  CHECK(describe_error(caf::make_error(caf::sec::request_timeout), system) == "no answer within the time limit");
  CHECK(describe_error(caf::make_error(caf::sec::request_receiver_down), system) == "the one who was asked is gone");
  CHECK(describe_error(caf::make_error(caf::sec::unexpected_message), system).find("unexpected") != std::string::npos);
}

}  // namespace troupe
