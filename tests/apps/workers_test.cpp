// Rollout workers in processes of their own: they join, work, leave, are killed and frozen, and the run goes on with
// every sample trained once.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/apps/program.h"

namespace troupe {
namespace {

using namespace actor_tests;

constexpr int kEndless = 100'000;  // steps of a run that the test interrupts

/// A run without workers of its own; a sign of life each 0.2 s, lost after 2 s.
struct ClusterRun : TinyRun {
  explicit ClusterRun(const std::string& name, int steps, const std::string& cluster = "") : TinyRun(name) {
    config = write_config(
        *this, concat("[training]\nsteps = ", steps,
                      "\nmax_context_length = 64\n[cluster]\nlisten = true\nheartbeat_s = 0.2\nlost_after_s = 2\n"
                      "wait_for_workers_s = 50\n",
                      cluster));
  }
  std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"rl", config, "--rollout.num_workers=0"});
    return more;
  }
  /// In the steps that were made, whose numbers have no gap: each sample once.
  void check_every_sample_trained(int64_t at_least) const {
    const auto lines = journal();
    const auto steps = static_cast<int64_t>(lines.size());
    CHECK(steps >= at_least);
    for (int64_t step = 1; step <= steps; ++step) CHECK(lines[static_cast<size_t>(step - 1)].at("step") == step);
    const auto fates = read_fates(run_folder() / "journal.jsonl");
    CHECK(static_cast<int64_t>(fates.size()) == steps * 8 * 8);
    for (const auto& [sample, fate] : fates) CHECK(fate == "trained");
  }
  std::string config;
};

std::vector<std::string> worker(const std::string& address, std::vector<std::string> more = {},
                                const std::string& retry_s = "30") {
  more.insert(more.begin(),
              {"worker", "--join", address, "--threads", "1", "--heartbeat-s", "0.2", "--retry-s", retry_s});
  return more;
}

/// Says something to a port and goes.
void make_noise(int port, const std::string& bytes) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(descriptor >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  (void)::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ::close(descriptor);
}

}  // namespace

TEST_CASE("two workers join a run that has none of its own, make every sample of it, and end with it") {
  ClusterRun setting("join", 150);  // enough of them for the second to come in time
  Program run(setting.arguments());
  const auto address = join_address(run);
  Program first(worker(address)), second(worker(address));
  CHECK(first.wait_for_line("joined the run tiny"));
  CHECK(second.wait_for_line("joined the run tiny"));
  CHECK(run.finish() == 0);
  CHECK(first.finish() == 0);
  CHECK(first.text.find("is over: done") != std::string::npos);
  CHECK(second.finish() == 0);
  INFO(run.text);
  setting.check_every_sample_trained(150);
}

TEST_CASE("a late worker gets the current weights and works; an interrupted run lets its workers go") {
  ClusterRun setting("late", kEndless);
  Program run(setting.arguments());
  const auto address = join_address(run);
  Program first(worker(address));
  REQUIRE(run.wait_for_line("step 3/"));
  Program late(worker(address, {"--model", setting.topology.model.path}));
  CHECK(std::stoi(late.rest_of_line("weights of version ")) >= 3);
  first.interrupt();
  CHECK(first.finish() == 130);
  REQUIRE(run.wait_for_line(" leaves: "));
  REQUIRE(run.wait_for_line("step "));  // the late one alone
  REQUIRE(run.wait_for_line("step "));
  run.interrupt();
  CHECK(run.finish() == 130);
  CHECK(late.finish() == 0);
  CHECK(late.text.find("is over: interrupted") != std::string::npos);
  setting.check_every_sample_trained(5);
}

TEST_CASE("B112 B122 a killed worker is found at once, a frozen one within lost_after_s; their work is done once") {
  ClusterRun setting("kill", kEndless);
  Program run(setting.arguments());
  const auto address = join_address(run);
  Program killed(worker(address));
  Program frozen(worker(address));
  for (auto* program : {&killed, &frozen}) REQUIRE(program->wait_for_line("joined the run tiny"));
  REQUIRE(run.wait_for_line("step "));
  killed.signal(SIGKILL);
  CHECK(run.wait_for_line("is lost: "));
  REQUIRE(run.wait_for_line("step "));
  frozen.signal(SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  CHECK(run.wait_for_line("is lost: "));
  // Two seconds and a heartbeat; the rest is what a busy machine may take to say so.
  CHECK(std::chrono::steady_clock::now() - stopped < std::chrono::seconds(8));
  Program third(worker(address));
  REQUIRE(run.wait_for_line("step "));
  frozen.signal(SIGCONT);
  CHECK(frozen.wait_for_line("trying to join again"));
  CHECK(frozen.wait_for_line("joined the run tiny"));
  run.interrupt();
  CHECK(run.finish() == 130);
  CHECK(third.finish() == 0);
  CHECK(frozen.finish() == 0);
  setting.check_every_sample_trained(4);
}

TEST_CASE(
    "B112 a run that is suspended before a worker connects: the worker gives up after its time, the run goes on") {
  ClusterRun setting("suspended", kEndless);
  Program run(setting.arguments());
  const auto address = join_address(run);
  run.signal(SIGSTOP);
  Program early(worker(address, {}, "1"));
  CHECK(early.finish() == 1);
  CHECK_MESSAGE(early.text.find("no run at " + address + " within 1 s (--retry-s)") != std::string::npos, early.text);
  run.signal(SIGCONT);
  Program second(worker(address));
  CHECK(second.wait_for_line("joined the run tiny"));
  REQUIRE(run.wait_for_line("step 2/"));
  run.interrupt();
  CHECK(run.finish() == 130);
  CHECK(second.finish() == 0);
  setting.check_every_sample_trained(2);
}

TEST_CASE("Ctrl-C on a worker gives its work back; wrong tokens, other models and noise are refused and harm nothing") {
  ClusterRun setting("refuse", kEndless);
  const auto token = setting.folder.path / "token", wrong = setting.folder.path / "wrong";
  std::ofstream(token) << "sesame\n";
  std::ofstream(wrong) << "sesam\n";
  Program run(setting.arguments({"--cluster.token_file=" + token.string()}));
  const auto address = join_address(run);
  const auto weights_line = run.text.substr(run.text.rfind("weights come from port ") + 23);
  const std::vector<std::string> with_token{"--token-file", token.string()};
  Program leaves(worker(address, with_token)), stays(worker(address, with_token));
  for (auto* program : {&leaves, &stays}) REQUIRE(program->wait_for_line("joined the run tiny"));
  REQUIRE(run.wait_for_line("step "));
  leaves.interrupt();
  CHECK(leaves.finish() == 130);
  CHECK(run.wait_for_line(" leaves: "));
  for (const auto& [more, reason] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "no token, but the run asks for one"},
           {{"--token-file", wrong.string()}, "wrong token"},
           {{"--token-file", token.string(), "--model", TROUPE_SOURCE_DIR "/configs/models/shakespeare-llama"},
            "it has another model"},
           {{"--token-file", token.string(), "--role", "reward"}, "the run's reward is in its own process"}}) {
    Program refused(worker(address, more));
    CHECK(refused.finish() == 1);
    CHECK_MESSAGE(refused.text.find("refused this worker: " + reason) != std::string::npos, refused.text);
    CHECK(run.wait_for_line("a worker was refused: "));
  }
  std::string zeros(100, '\0'), ones(200'000, '\xff');
  for (const auto& noise : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(), zeros, ones}) {
    make_noise(std::stoi(address.substr(address.rfind(':') + 1)), noise);
    make_noise(std::stoi(weights_line), noise);
  }
  REQUIRE(run.wait_for_line("step "));
  REQUIRE(run.wait_for_line("step "));
  run.interrupt();
  CHECK(run.finish() == 130);
  CHECK(stays.finish() == 0);
  setting.check_every_sample_trained(3);
}

TEST_CASE("rules in processes of their own: a killed, a frozen and a leaving grader lose no sample") {
  ClusterRun setting("grade", kEndless, "[[topology.place]]\nrole = \"reward\"\nwhere = \"remote\"\n");
  Program dry(setting.arguments({"--dry-run"}));
  CHECK(dry.finish() == 0);
  CHECK_MESSAGE(dry.text.find("\"reward, in workers of role reward\": 1") != std::string::npos, dry.text);
  Program run(setting.arguments());
  const auto address = join_address(run);
  const auto grader = worker(address, {"--role", "reward"});
  Program maker(worker(address)), killed(grader), frozen(grader);
  for (auto* program : {&maker, &killed, &frozen}) REQUIRE(program->wait_for_line("joined the run tiny"));
  REQUIRE(run.wait_for_line("step "));
  killed.signal(SIGKILL);
  CHECK(run.wait_for_line("is lost: "));
  REQUIRE(run.wait_for_line("step "));
  frozen.signal(SIGSTOP);
  CHECK(run.wait_for_line("is lost: "));
  Program third(grader);  // nobody is left to grade before it comes
  REQUIRE(run.wait_for_line("step "));
  REQUIRE(run.wait_for_line("step "));
  frozen.signal(SIGCONT);
  CHECK(frozen.wait_for_line("trying to join again"));
  CHECK(frozen.wait_for_line("joined the run tiny"));
  third.interrupt();
  CHECK(third.finish() == 130);
  CHECK(run.wait_for_line(" leaves: "));
  REQUIRE(run.wait_for_line("step "));
  REQUIRE(run.wait_for_line("step "));
  run.interrupt();
  CHECK(run.finish() == 130);
  CHECK(maker.finish() == 0);
  CHECK(frozen.finish() == 0);
  setting.check_every_sample_trained(6);
}

TEST_CASE("a worker outlives a killed run and joins the resumed one; without a run it gives up after its time") {
  ClusterRun setting("rejoin", 8, "[checkpoint]\ninterval = 1\n");
  std::string address;
  std::unique_ptr<Program> faithful;
  {
    Program run(setting.arguments());
    address = join_address(run);
    faithful = std::make_unique<Program>(worker(address));
    REQUIRE(run.wait_for_line("step 2/8"));
    REQUIRE(run.wait_for_line("checkpoint written"));
    run.signal(SIGKILL);
    CHECK(faithful->wait_for_line("is lost"));
  }
  {
    Program run(setting.arguments({"--cluster.port=" + address.substr(address.rfind(':') + 1)}));
    CHECK(run.wait_for_line("resuming after step"));
    CHECK(faithful->wait_for_line("joined the run tiny"));
    CHECK(run.finish() == 0);
  }
  CHECK(faithful->finish() == 0);
  setting.check_every_sample_trained(8);
  Program lonely(worker(address, {}, "1"));
  CHECK(lonely.finish() == 1);
  CHECK_MESSAGE(lonely.text.find("no run at " + address + " within 1 s (--retry-s)") != std::string::npos, lonely.text);
}

TEST_CASE("a run that nobody joins stops with the limit's name; an open port without a token is refused at the start") {
  ClusterRun setting("alone", 2);
  {
    Program run(setting.arguments({"--cluster.wait_for_workers_s=0.5"}));
    CHECK(run.finish() == 1);
    CHECK_MESSAGE(run.text.find("(cluster.wait_for_workers_s)") != std::string::npos, run.text);
  }
  Program open(setting.arguments({"--cluster.bind=0.0.0.0"}));
  CHECK(open.finish() == 2);
  CHECK_MESSAGE(open.text.find("cluster.bind = \"0.0.0.0\": is not loopback") != std::string::npos, open.text);
  CHECK(Program({"worker", "--join", "nowhere"}).finish() == 2);
}

}  // namespace troupe
