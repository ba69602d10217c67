// The wire of remote rewards: what comes back, and what happens where nothing or something else does.
#include "actors/remote_service.h"

#include <csignal>
#include <future>
#include <zmq.hpp>

#include "actors/socket_frames.h"
#include "base/log.h"
#include "tests/actors/python_process.h"
#include "tests/actors/support.h"

namespace troupe::actor_tests {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

/// The other end as a test writes it: whatever it likes, byte by byte.
class FakeService {
 public:
  FakeService() : socket_(context_, zmq::socket_type::router) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 20'000);
    socket_.bind("tcp://127.0.0.1:*");
    address = socket_.get(zmq::sockopt::last_endpoint);
  }
  json take() {
    zmq::message_t peer, head;
    REQUIRE(socket_.recv(peer));
    REQUIRE(socket_.recv(head));
    peer_ = peer.to_string();
    return json::parse(head.to_string_view());
  }
  void say(const std::string& text) {
    socket_.send(zmq::buffer(peer_), zmq::send_flags::sndmore);
    socket_.send(zmq::buffer(text), zmq::send_flags::none);
  }
  void answer(const json& id, const json& item) { say(json{{"protocol", 1}, {"id", id}, {"items", {item}}}.dump()); }
  std::string address;

 private:
  zmq::context_t context_{1};
  zmq::socket_t socket_;
  std::string peer_;
};

RemoteOptions options_of(const std::string& address, double timeout_s = 20) {
  RemoteOptions options;
  options.address = address;
  options.timeout_s = timeout_s;
  options.reconnect_s = 20;
  return options;
}

std::future<std::string> ask(ZmqRemoteService& service, const json& item) {
  return std::async(std::launch::async, [&service, item] {
    try {
      return service.ask("score", item).dump();
    } catch (const std::exception& error) {
      return std::string("failed: ") + error.what();
    }
  });
}

struct Quiet {
  Quiet() {
    log::set_console_sink([](std::string_view) {});
  }
  ~Quiet() { log::set_console_sink(nullptr); }
};

}  // namespace

TEST_CASE("a question carries protocol, operation, id, limit and item; answers find their askers in any order") {
  const Quiet quiet;
  FakeService other;
  ZmqRemoteService service(options_of(other.address));
  auto first = ask(service, {{"n", 1}});
  const auto asked_first = other.take();
  CHECK(asked_first.at("protocol") == 1);
  CHECK(asked_first.at("op") == "score");
  CHECK(asked_first.at("deadline_ms") == 20'000);
  CHECK(asked_first.at("items") == json::array({{{"n", 1}}}));
  auto second = ask(service, {{"n", 2}});
  const auto asked_second = other.take();
  other.answer(asked_second.at("id"), {{"value", 2}, {"something", "else"}});
  CHECK(json::parse(second.get()).at("value") == 2);
  other.answer(asked_first.at("id"), {{"value", 1}});
  CHECK(json::parse(first.get()).at("value") == 1);
  CHECK(service.counts().num_answered == 2);
}

TEST_CASE("an answer that is an error, no item, no object or no JSON is the question's failure, with what came") {
  const Quiet quiet;
  FakeService other;
  ZmqRemoteService service(options_of(other.address));
  const auto outcome = [&](const std::function<std::string(const json& id)>& say) {
    auto question = ask(service, {});
    other.say(say(other.take().at("id")));
    return question.get();
  };
  CHECK(outcome([](const json& id) {
          return json{{"id", id}, {"items", {{{"error", "no letters"}}}}}.dump();
        }) == "failed: no letters");
  CHECK(outcome([](const json& id) {
          return json{{"id", id}, {"items", json::array()}}.dump();
        }).starts_with("failed: the answer holds no item"));
  CHECK(outcome([](const json& id) {
          return json{{"id", id}}.dump();
        }).starts_with("failed: the answer holds no item"));
  CHECK(outcome([](const json& id) {
          return json{{"id", id}, {"items", {7}}}.dump();
        }).starts_with("failed: the answer's item is not an object"));
  CHECK(outcome([](const json& id) {
          return concat("{\"id\": ", id.dump(), ", \"items\": [{\"value\": NaN}]}");
        }).starts_with("failed: the answer is not JSON: {\"id\""));
}

TEST_CASE("late answers, and answers for another id, reach nobody and are named where the question fails") {
  const Quiet quiet;
  FakeService other;
  ZmqRemoteService service(options_of(other.address, 2));
  auto question = ask(service, {});
  const auto id = other.take().at("id").get<int64_t>();
  other.answer(id + 1000, {{"value", 5}});
  other.say("noise");
  const auto text = question.get();
  CHECK(text.starts_with("failed: time limit of 2 s; 2 answers to other questions came meanwhile: noise"));
  other.answer(id, {{"value", 5}});  // late
  auto next = ask(service, {});
  const auto next_id = other.take().at("id");
  other.answer(next_id, {{"value", 6}});
  CHECK(json::parse(next.get()).at("value") == 6);
  CHECK(service.counts().num_strays == 3);
  CHECK(service.counts().num_timeouts == 1);
}

TEST_CASE("at most num_parallel questions are under way") {
  const Quiet quiet;
  FakeService other;
  auto options = options_of(other.address);
  options.num_parallel = 1;
  ZmqRemoteService service(options);
  auto first = ask(service, {{"n", 1}}), second = ask(service, {{"n", 2}});
  const auto asked = other.take();
  other.answer(asked.at("id"), {{"value", 1}});
  const auto asked_next = other.take();
  CHECK(asked_next.at("id") != asked.at("id"));
  other.answer(asked_next.at("id"), {{"value", 1}});
  first.get();
  second.get();
}

TEST_CASE("where nobody listens a question fails after reconnect_s") {
  const Quiet quiet;
  auto options = options_of("tcp://127.0.0.1:1");
  options.reconnect_s = 0.3;
  ZmqRemoteService service(options);
  CHECK(ask(service, {}).get().starts_with("failed: nobody answers at tcp://127.0.0.1:1"));
}

TEST_CASE("a Python process gives values and reasons; NaN, text and nothing are its failures") {
  const Quiet quiet;
  TemporaryFolder folder("remote-python");
  RemoteOptions options;
  options.command = python_command(write_script(folder.path / "score.py", R"(
def score(item):
    what = item["what"]
    if what == "raise": raise KeyError("gold")
    return {"number": 0.5, "true": True, "nan": float("nan"), "text": "0.5", "nothing": None}[what]
serve(score)
)"));
  ZmqRemoteService service(options);
  const auto outcome = [&](const char* what) { return ask(service, {{"what", what}}).get(); };
  CHECK(json::parse(outcome("number")).at("value") == 0.5);
  CHECK(json::parse(outcome("true")).at("value") == 1.0);
  CHECK(outcome("raise") == "failed: KeyError: 'gold'");
  CHECK(outcome("nan") == "failed: ValueError: the value is nan");
  CHECK(outcome("text") == "failed: TypeError: the value is a text, '0.5'");
  CHECK(outcome("nothing").starts_with("failed: TypeError"));
  CHECK(service.counts().num_starts == 1);
}

TEST_CASE("a process that is killed, or that freezes, is started again, and what it was asked is asked again") {
  const Quiet quiet;
  TemporaryFolder folder("remote-killed");
  RemoteOptions options;
  // The first one hangs on what it is asked, and says so by a file.
  options.command = python_command(write_script(folder.path / "score.py", R"(
def score(item):
    mark = os.path.join(os.path.dirname(os.path.abspath(__file__)), item["mark"])
    if not os.path.exists(mark):
        open(mark, "w").close()
        time.sleep(60)
    return 1
serve(score)
)"));
  options.timeout_s = 60;
  {
    ZmqRemoteService service(options);
    auto question = ask(service, {{"mark", "killed"}});
    while (!std::filesystem::exists(folder.path / "killed")) std::this_thread::yield();
    REQUIRE(::kill(service.process_id(), SIGKILL) == 0);
    CHECK(json::parse(question.get()).at("value") == 1);
    const auto counts = service.counts();
    CHECK(counts.num_starts == 2);
    CHECK(counts.num_losses == 1);
    CHECK(counts.num_timeouts == 0);
  }
  options.timeout_s = 3;
  ZmqRemoteService service(options);
  CHECK(json::parse(ask(service, {{"mark", "killed"}}).get()).at("value") == 1);
  REQUIRE(::kill(service.process_id(), SIGSTOP) == 0);
  CHECK(ask(service, {{"mark", "killed"}}).get() == "failed: time limit of 3 s");
  CHECK(json::parse(ask(service, {{"mark", "killed"}}).get()).at("value") == 1);
  CHECK(service.counts().num_starts == 2);
}

TEST_CASE("a question that kills the process is given up after three times; a process that cannot live, for good") {
  const Quiet quiet;
  TemporaryFolder folder("remote-deadly");
  RemoteOptions options;
  options.command = python_command(write_script(folder.path / "score.py", R"(
def score(item):
    if item["deadly"]: os._exit(3)
    return 1
serve(score)
)"));
  {
    ZmqRemoteService service(options, {.num_restarts = 5, .first_pause = 10ms});
    CHECK(ask(service, {{"deadly", true}}).get().find("died 3 times on this question") != std::string::npos);
    CHECK(json::parse(ask(service, {{"deadly", false}}).get()).at("value") == 1);
    CHECK(service.counts().num_starts == 4);
  }
  options.command = "exit 4";
  ZmqRemoteService service(options, {.num_restarts = 2, .first_pause = 10ms});
  CHECK(ask(service, {}).get() == "failed: exit 4: ended 3 times, last with exit code 4");
  CHECK(ask(service, {}).get() == "failed: exit 4: ended 3 times, last with exit code 4");
}

TEST_CASE("a process that the run started ends with it") {
  const Quiet quiet;
  TemporaryFolder folder("remote-ends");
  RemoteOptions options;
  options.command = python_command(write_script(folder.path / "score.py", "serve(lambda item: 1)\n"));
  pid_t process = -1;
  {
    ZmqRemoteService service(options);
    ask(service, {}).get();
    process = service.process_id();
    REQUIRE(process > 0);
    CHECK(::kill(process, 0) == 0);
  }
  CHECK(::kill(process, 0) == -1);
}

}  // namespace troupe::actor_tests
