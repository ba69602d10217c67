#include "actors/weight_subscriber.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "actors/socket_frames.h"
#include "actors/weight_manifest.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
constexpr int64_t kMostMessageBytes = int64_t{64} << 20;
constexpr Milliseconds kAskAgain{2'000};  // while nothing newer is there: the run may have lost our question
constexpr Milliseconds kPauseAfterFailure{1'000};

}  // namespace

class WeightSubscriber::Loop {
 public:
  Loop(WeightSubscriber& owner, const ModelConfig& config, WeightSubscriberOptions options)
      : owner_(owner),
        options_(std::move(options)),
        assembler_(config),
        context_(1),
        socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::maxmsgsize, kMostMessageBytes);
    try {
      socket_.connect(options_.endpoint);
    } catch (const zmq::error_t& error) {
      fail("weights: cannot connect to ", options_.endpoint, ": ", error.what());
    }
  }

  void run() {
    want();
    while (!owner_.is_stopping_) {
      std::array<zmq::pollitem_t, 2> items{
          {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, owner_.wake_, ZMQ_POLLIN, 0}}};
      zmq::poll(items.data(), items.size(), Milliseconds(200));
      while (!owner_.is_stopping_ && receive()) continue;
      ask_again();
    }
  }

 private:
  void say(const nlohmann::json& words) {
    (void)socket_.send(zmq::buffer(words.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)),
                       zmq::send_flags::dontwait);
    heard_ = Clock::now();
  }

  void want() { say({{"op", "want"}, {"ticket", options_.ticket}, {"have", owner_.version_.load()}}); }

  void ask_again() {
    const auto limit = is_pausing_                 ? kPauseAfterFailure
                       : assembler_.is_under_way() ? options_.silence_limit
                                                   : std::min(kAskAgain, options_.silence_limit);
    if (Clock::now() - heard_ < limit) return;
    if (assembler_.is_under_way())
      reject(concat("version ", assembler_.version(), " stopped in the middle for ", limit.count(), " ms"));
    is_pausing_ = false;
    want();
  }

  bool receive() {
    zmq::message_t head, bytes;
    if (!receive_frames(socket_, head, bytes)) return false;
    if (is_pausing_) return true;  // the rest of a version that was refused
    try {
      const auto words = nlohmann::json::parse(head.to_string_view());
      take(words, std::span(static_cast<const std::byte*>(bytes.data()), bytes.size()));
      heard_ = Clock::now();
    } catch (const std::exception& error) {
      reject(error.what());
    }
    return true;
  }

  void take(const nlohmann::json& words, std::span<const std::byte> bytes) {
    const auto op = words.at("op").get<std::string>();
    if (op == "begin") {
      assembler_.begin(parse_manifest(words.at("manifest")));
    } else if (op == "chunk") {
      assembler_.chunk(words.at("tensor"), words.at("offset"), bytes);
      say({{"op", "more"}, {"count", 1}});
    } else if (op == "end") {
      auto snapshot = assembler_.end();
      const auto version = snapshot.version;
      require(version > owner_.version_, "weights: version ", version, " is not newer than ", owner_.version_.load());
      options_.on_weights(std::move(snapshot));
      owner_.version_ = version;
      say({{"op", "ack"}, {"version", version}, {"result", "applied"}});
      want();
    }
  }

  /// All or nothing: the old version stays, and after a pause the newest is asked for.
  void reject(const std::string& why) {
    assembler_.drop();
    ++owner_.num_failures_;
    log::warning(why, "; version ", owner_.version_.load(), " stays");
    say({{"op", "ack"}, {"version", owner_.version_.load()}, {"result", "mismatch"}, {"why", why}});
    is_pausing_ = true;
  }

  WeightSubscriber& owner_;
  WeightSubscriberOptions options_;
  WeightAssembler assembler_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  Clock::time_point heard_;
  bool is_pausing_ = false;
};

WeightSubscriber::WeightSubscriber(const ModelConfig& config, WeightSubscriberOptions options) {
  loop_ = std::make_unique<Loop>(*this, config, std::move(options));
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  require(wake_ >= 0, "weights: no event descriptor is left");
  thread_ = std::thread([this] {
    try {
      loop_->run();
    } catch (const std::exception& error) {
      log::error("weights: nothing is received any more: ", error.what());
    }
  });
}

WeightSubscriber::~WeightSubscriber() {
  is_stopping_ = true;
  ::eventfd_write(wake_, 1);
  thread_.join();
  loop_.reset();
  ::close(wake_);
}

}  // namespace troupe
