#include "actors/remote_service.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <zmq.hpp>

#include "actors/child_process.h"
#include "actors/socket_frames.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr int64_t kMostMessageBytes = int64_t{16} << 20;
constexpr Milliseconds kLook{100};

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

std::string excerpt(std::string_view text) {
  constexpr size_t kMost = 80;
  return text.size() <= kMost ? std::string(text) : concat(text.substr(0, kMost), "...");
}

/// A socket file's place that nobody else has.
std::string fresh_address() {
  static std::atomic<int> number{0};
  return concat("ipc:///tmp/troupe-", ::getpid(), "-", ++number, "-",
                static_cast<uint32_t>(Clock::now().time_since_epoch().count()), ".sock");
}

/// The number after `"id":` in a text that is no JSON, or -1.
int64_t find_id(std::string_view text) {
  const auto key = text.find("\"id\"");
  if (key == std::string_view::npos) return -1;
  const auto digit = text.find_first_of("0123456789", key);
  if (digit == std::string_view::npos ||
      text.substr(key + 4, digit - key - 4).find_first_not_of(" :\t\n") != std::string_view::npos)
    return -1;
  int64_t id = 0;
  for (auto i = digit; i < text.size() && i < digit + 15 && text[i] >= '0' && text[i] <= '9'; ++i)
    id = id * 10 + (text[i] - '0');
  return id;
}

struct RemoteQuestion {
  int64_t id = 0;
  std::string op;
  nlohmann::json item, answer;
  std::string failure;
  int num_sendings = 0;
  bool is_sent = false, is_done = false;
  Clock::time_point limit;
  int64_t strays_before = 0;
};

}  // namespace

class ZmqRemoteService::Loop {
 public:
  Loop(RemoteOptions options, RestartOptions restarts)
      : options_(std::move(options)),
        restarts_(restarts),
        has_own_address_(options_.address.empty()),
        address_(has_own_address_ ? fresh_address() : options_.address),
        context_(1),
        socket_(context_, zmq::socket_type::dealer),
        monitor_(context_, zmq::socket_type::pair) {
    socket_.set(zmq::sockopt::linger, 0);
    monitor_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::maxmsgsize, kMostMessageBytes);
    socket_.set(zmq::sockopt::immediate, 1);  // nothing is queued for a process that is not there
    socket_.set(zmq::sockopt::reconnect_ivl, 50);
    socket_.set(zmq::sockopt::reconnect_ivl_max, 1000);
    socket_.set(zmq::sockopt::heartbeat_ivl, 1000);
    socket_.set(zmq::sockopt::heartbeat_timeout, 10'000);
    const std::string events = concat("inproc://events-", address_.size());
    require(::zmq_socket_monitor(socket_.handle(), events.c_str(),
                                 ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) == 0,
            "remote: no events of the connection: ", ::zmq_strerror(::zmq_errno()));
    monitor_.connect(events);
    try {
      socket_.connect(address_);
    } catch (const zmq::error_t& error) {
      throw UsageError(concat("remote address ", address_, ": ", error.what()));
    }
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    require(wake_ >= 0, "remote: no event descriptor is left");
    lost_since_ = Clock::now();
  }
  ~Loop() {
    ::close(wake_);
    if (has_own_address_) ::unlink(address_.c_str() + std::strlen("ipc://"));
  }

  /// The thread's whole life: it starts and ends the process, which dies with it.
  void run() {
    try {
      while (!is_stopping_) {
        look_after_process();
        std::array<zmq::pollitem_t, 3> items{{{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                              {monitor_.handle(), 0, ZMQ_POLLIN, 0},
                                              {nullptr, wake_, ZMQ_POLLIN, 0}}};
        zmq::poll(items.data(), items.size(), kLook);
        eventfd_t count = 0;
        (void)::eventfd_read(wake_, &count);
        const std::scoped_lock lock(mutex_);
        take_answers();
        take_events();
        end_overdue();
        send_waiting();
      }
    } catch (const std::exception& error) {
      log::error("remote ", address_, ": ", error.what());
      const std::scoped_lock lock(mutex_);
      broken_ = error.what();
    }
    process_.reset();
    process_id_ = -1;
    const std::scoped_lock lock(mutex_);
    if (broken_.empty()) broken_ = "the run is being ended";
    fail_all(broken_);
  }

  nlohmann::json ask(const std::string& op, const nlohmann::json& item) {
    std::unique_lock lock(mutex_);
    require(broken_.empty(), broken_);
    auto& question = questions_.emplace_back();
    const auto place = std::prev(questions_.end());
    question.id = ++next_id_;
    question.op = op;
    question.item = item;
    question.strays_before = counts_.num_strays;
    ++counts_.num_asked;
    ::eventfd_write(wake_, 1);
    // The loop ends every question by its own limits, and all of them when it ends.
    done_.wait(lock, [&] { return question.is_done; });
    const auto finished = std::move(question);
    questions_.erase(place);
    lock.unlock();
    require(finished.failure.empty(), finished.failure);
    return finished.answer;
  }

  void stop() {
    is_stopping_ = true;
    ::eventfd_write(wake_, 1);
  }
  RemoteCounts counts() {
    const std::scoped_lock lock(mutex_);
    return counts_;
  }
  pid_t process_id() const { return process_id_; }

 private:
  void finish(RemoteQuestion& question, std::string failure) {
    if (question.is_sent) --num_sent_;
    question.is_sent = false;
    question.is_done = true;
    question.failure = std::move(failure);
    done_.notify_all();
  }
  void fail_all(const std::string& why) {
    for (auto& question : questions_)
      if (!question.is_done) finish(question, why);
  }

  // -- the process ---------------------------------------------------------------------------------------------------

  void look_after_process() {
    if (options_.command.empty()) return;
    if (process_ != nullptr) {
      const auto outcome = process_->outcome();
      if (!outcome) return;
      process_.reset();
      process_id_ = -1;
      const auto pause = restarts_.next_pause(Clock::now());
      if (!pause) {
        const std::scoped_lock lock(mutex_);
        broken_ = concat(options_.command, ": ended ", restarts_.num_restarts() + 1, " times, last with ", *outcome);
        log::error(broken_);
        fail_all(broken_);
        is_given_up_ = true;
        return;
      }
      log::warning(options_.command, ": ended with ", *outcome, "; started again in ", pause->count(), " ms");
      start_at_ = Clock::now() + *pause;
    }
    if (is_given_up_ || Clock::now() < start_at_) return;
    process_ = std::make_unique<ChildProcess>(
        options_.command, std::vector<std::pair<std::string, std::string>>{{"TROUPE_ADDRESS", address_}});
    process_id_ = process_->id();
    const std::scoped_lock lock(mutex_);
    ++counts_.num_starts;
  }

  // -- the connection ------------------------------------------------------------------------------------------------

  void take_events() {
    zmq::message_t head, place;
    while (receive_frames(monitor_, head, place)) {
      uint16_t event = 0;
      if (head.size() < sizeof event) continue;
      std::memcpy(&event, head.data(), sizeof event);
      if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        is_connected_ = true;
        if (counts_.num_losses > 0) log::info("remote ", address_, ": connected again");
      } else if (event == ZMQ_EVENT_DISCONNECTED) {
        lose();
      }
    }
  }

  /// What was sent is asked again when the process is back.
  void lose() {
    if (!is_connected_) return;
    is_connected_ = false;
    lost_since_ = Clock::now();
    ++counts_.num_losses;
    if (!is_stopping_)
      log::warning("remote ", address_, ": the process is gone; ", num_sent_, " questions wait for it");
    for (auto& question : questions_) {
      if (!question.is_sent) continue;
      question.is_sent = false;
      --num_sent_;
      if (question.num_sendings >= kMostSendings)
        finish(question,
               concat("the process at ", address_, " died ", question.num_sendings, " times on this question"));
    }
  }

  void send_waiting() {
    if (!is_connected_) return;
    for (auto& question : questions_) {
      if (num_sent_ >= options_.num_parallel) return;
      if (question.is_sent || question.is_done) continue;
      const nlohmann::json words{{"protocol", 1},
                                 {"op", question.op},
                                 {"id", question.id},
                                 {"deadline_ms", static_cast<int64_t>(options_.timeout_s * 1000)},
                                 {"items", {question.item}}};
      const auto text = words.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      if (!socket_.send(zmq::buffer(text), zmq::send_flags::dontwait)) return;  // its event is on the way
      question.is_sent = true;
      ++question.num_sendings;
      ++num_sent_;
      question.limit = Clock::now() + seconds(options_.timeout_s);
    }
  }

  void end_overdue() {
    const auto now = Clock::now();
    bool is_frozen = false;
    for (auto& question : questions_) {
      if (question.is_done) continue;
      if (question.is_sent && now >= question.limit) {
        ++counts_.num_timeouts;
        const auto num_strays = counts_.num_strays - question.strays_before;
        finish(question, concat("time limit of ", options_.timeout_s, " s",
                                num_strays == 0 ? std::string()
                                                : concat("; ", num_strays,
                                                         " answers to other questions came meanwhile: ", last_stray_)));
        is_frozen |= now - heard_ >= seconds(options_.timeout_s);
      } else if (!is_connected_ && now - lost_since_ >= seconds(options_.reconnect_s)) {
        finish(question, concat("nobody answers at ", address_, " since ",
                                std::chrono::duration_cast<std::chrono::seconds>(now - lost_since_).count(), " s"));
      }
    }
    if (is_frozen && process_ != nullptr) {
      log::warning(options_.command, ": silent for ", options_.timeout_s, " s; it is ended and started again");
      process_->kill();
    }
  }

  // -- answers -------------------------------------------------------------------------------------------------------

  void take_answers() {
    zmq::message_t head, payload;
    while (receive_frames(socket_, head, payload)) {
      heard_ = Clock::now();
      const auto text = head.to_string_view();
      const auto words = nlohmann::json::parse(text, nullptr, false);
      int64_t id = -1;
      if (words.is_object()) {
        const auto found = words.find("id");
        if (found != words.end() && found->is_number_integer()) id = found->get<int64_t>();
      } else {
        id = find_id(text);
      }
      const auto question = std::find_if(questions_.begin(), questions_.end(), [&](const RemoteQuestion& one) {
        return one.id == id && one.is_sent && !one.is_done;
      });
      if (question == questions_.end()) {
        ++counts_.num_strays;
        last_stray_ = excerpt(text);
        continue;
      }
      ++counts_.num_answered;
      read_answer(*question, words, text);
    }
  }

  void read_answer(RemoteQuestion& question, const nlohmann::json& words, std::string_view text) {
    if (!words.is_object()) return finish(question, concat("the answer is not JSON: ", excerpt(text)));
    const auto items = words.find("items");
    if (items == words.end() || !items->is_array() || items->empty())
      return finish(question, concat("the answer holds no item: ", excerpt(text)));
    auto& item = items->front();
    if (!item.is_object()) return finish(question, concat("the answer's item is not an object: ", excerpt(text)));
    const auto error = item.find("error");
    if (error != item.end() && !error->is_null())
      return finish(question, error->is_string() ? error->get<std::string>() : error->dump());
    question.answer = item;
    finish(question, "");
  }

  const RemoteOptions options_;
  RestartPolicy restarts_;
  const bool has_own_address_;
  const std::string address_;
  int wake_ = -1;
  std::atomic<bool> is_stopping_{false};
  std::atomic<pid_t> process_id_{-1};

  // of the loop's thread alone
  zmq::context_t context_;
  zmq::socket_t socket_, monitor_;
  std::unique_ptr<ChildProcess> process_;
  Clock::time_point start_at_{};
  bool is_given_up_ = false;

  std::mutex mutex_;  // guards what follows
  std::condition_variable done_;
  std::list<RemoteQuestion> questions_;
  std::string broken_, last_stray_;
  bool is_connected_ = false;
  Clock::time_point lost_since_{}, heard_{};
  int num_sent_ = 0;
  int64_t next_id_ = 0;
  RemoteCounts counts_;
};

ZmqRemoteService::ZmqRemoteService(RemoteOptions options, RestartOptions restarts)
    : loop_(std::make_unique<Loop>(std::move(options), restarts)), thread_([this] { loop_->run(); }) {}

ZmqRemoteService::~ZmqRemoteService() {
  loop_->stop();
  thread_.join();
}

nlohmann::json ZmqRemoteService::ask(const std::string& op, const nlohmann::json& item) { return loop_->ask(op, item); }
RemoteCounts ZmqRemoteService::counts() const { return loop_->counts(); }
pid_t ZmqRemoteService::process_id() const { return loop_->process_id(); }

void use_zmq_for_remote_services() {
  set_remote_service_factory([](const RemoteOptions& options) { return std::make_shared<ZmqRemoteService>(options); });
}

}  // namespace troupe
