#include "actors/weight_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <random>

#include "actors/socket_frames.h"
#include "actors/weight_manifest.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWindow = 8;                        // chunks on their way to one worker
constexpr int64_t kMostRequestBytes = 64 * 1024;  // a worker's words are short; noise gets no memory

/// One version, ready to be sent to any number of workers.
struct Publication {
  struct Chunk {
    size_t tensor;
    uint64_t offset, bytes;
  };
  WeightSnapshotPointer snapshot;
  std::string manifest;
  std::vector<const std::byte*> data;  // by tensor
  std::vector<Chunk> chunks;
};

std::shared_ptr<const Publication> make_publication(WeightSnapshotPointer snapshot) {
  auto made = std::make_shared<Publication>();
  const auto manifest = make_manifest(*snapshot);
  made->manifest = nlohmann::json{{"op", "begin"}, {"manifest", to_json(manifest)}}.dump();
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const auto& tensor = manifest.tensors[t];
    made->data.push_back(static_cast<const std::byte*>(snapshot->tensors.at(tensor.name).const_data_ptr()));
    for (uint64_t offset = 0; offset < tensor.bytes; offset += kMostChunkBytes)
      made->chunks.push_back({t, offset, std::min<uint64_t>(kMostChunkBytes, tensor.bytes - offset)});
  }
  made->snapshot = std::move(snapshot);
  return made;
}

std::string random_ticket() {
  std::random_device random;
  std::string ticket;
  for (int i = 0; i < 32; ++i) ticket += "0123456789abcdef"[random() % 16];
  return ticket;
}

}  // namespace

/// The thread's own: sockets and sessions.
class WeightPublisher::Loop {
 public:
  explicit Loop(WeightPublisher& owner) : owner_(owner), context_(1), socket_(context_, zmq::socket_type::router) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::router_mandatory, true);
    socket_.set(zmq::sockopt::maxmsgsize, kMostRequestBytes);
    const auto& options = owner.options_;
    try {
      socket_.bind(concat("tcp://", options.bind, ":", options.port == 0 ? "*" : std::to_string(options.port)));
    } catch (const zmq::error_t& error) {
      fail("weights: cannot listen at ", options.bind, ":", options.port, ": ", error.what());
    }
    const auto endpoint = socket_.get(zmq::sockopt::last_endpoint);
    port = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  }

  void run() {
    while (true) {
      std::array<zmq::pollitem_t, 2> items{
          {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, owner_.wake_, ZMQ_POLLIN, 0}}};
      zmq::poll(items.data(), items.size(), std::chrono::milliseconds(500));
      if (items[1].revents != 0) {
        eventfd_t count;
        ::eventfd_read(owner_.wake_, &count);
      }
      if (!look()) return;
      for (int i = 0; i < 256 && receive(); ++i) continue;
    }
  }

  int port = 0;

 private:
  struct Session {
    std::string ticket;
    int64_t have = -1;
    std::shared_ptr<const Publication> serving;  // null: up to date, or nothing is published yet
    size_t next = 0;                             // chunk
    int credit = 0;
    Clock::time_point heard;
  };

  /// What changed outside: a new version, a ticket that is no longer valid, the end (false).
  bool look() {
    std::set<std::string> tickets;
    {
      const std::lock_guard lock(owner_.mutex_);
      if (owner_.is_stopping_) return false;
      newest_ = owner_.newest_;
      tickets = owner_.tickets_;
    }
    const auto now = Clock::now();
    std::erase_if(sessions_, [&](const auto& entry) {
      const auto& session = entry.second;
      return !tickets.contains(session.ticket) ||
             (session.serving != nullptr && now - session.heard > owner_.options_.lost_after);
    });
    std::vector<std::string> waiting;
    for (const auto& [identity, session] : sessions_)
      if (session.serving == nullptr) waiting.push_back(identity);
    for (const auto& identity : waiting) serve(identity);
    return true;
  }

  bool receive() {
    zmq::message_t identity, body;
    if (!receive_frames(socket_, identity, body)) return false;
    const auto words = nlohmann::json::parse(body.to_string_view(), nullptr, false);
    try {
      if (!words.is_object() || !hear(identity.to_string(), words)) ++owner_.num_strangers_;
    } catch (const nlohmann::json::exception&) {
      ++owner_.num_strangers_;
    }
    return true;
  }

  bool hear(const std::string& identity, const nlohmann::json& words) {
    const auto op = words.at("op").get<std::string>();
    if (op == "want") {
      const auto ticket = words.at("ticket").get<std::string>();
      {
        const std::lock_guard lock(owner_.mutex_);
        if (!owner_.tickets_.contains(ticket)) return false;
      }
      sessions_[identity] = {ticket, words.at("have").get<int64_t>(), nullptr, 0, 0, Clock::now()};
      serve(identity);
      return true;
    }
    const auto found = sessions_.find(identity);
    if (found == sessions_.end()) return false;
    found->second.heard = Clock::now();
    if (op == "more") {
      found->second.credit += std::clamp(words.at("count").get<int>(), 0, kWindow);
      send_chunks(identity);
    } else if (op == "ack") {
      const bool applied = words.at("result") == "applied";
      ++(applied ? owner_.num_applied_ : owner_.num_mismatches_);
      if (!applied) log::warning("weights: a worker kept its old version: ", words.value("why", ""));
    } else {
      return false;
    }
    return true;
  }

  void serve(const std::string& identity) {
    auto& session = sessions_.at(identity);
    if (newest_ == nullptr || newest_->version <= session.have) return;
    if (publication_ == nullptr || publication_->snapshot != newest_) {
      publication_ = make_publication(newest_);
      ++owner_.num_serialized_;
    }
    session.serving = publication_;
    session.next = 0;
    session.credit = kWindow;
    session.heard = Clock::now();
    if (send(identity, session.serving->manifest)) send_chunks(identity);
  }

  void send_chunks(const std::string& identity) {
    while (true) {
      const auto found = sessions_.find(identity);
      if (found == sessions_.end() || found->second.serving == nullptr) return;
      auto& session = found->second;
      const auto& publication = session.serving;
      if (session.next == publication->chunks.size()) {
        const auto version = publication->snapshot->version;
        session.serving = nullptr;
        session.have = version;  // until it says otherwise
        send(identity, nlohmann::json{{"op", "end"}, {"version", version}}.dump());
        return;
      }
      if (session.credit == 0) return;
      --session.credit;
      const auto& chunk = publication->chunks[session.next++];
      // The message points into the snapshot and keeps the publication alive until ZeroMQ has sent it.
      auto* keep = new std::shared_ptr<const Publication>(publication);
      zmq::message_t bytes(
          const_cast<std::byte*>(publication->data[chunk.tensor] + chunk.offset), chunk.bytes,
          [](void*, void* hint) { delete static_cast<std::shared_ptr<const Publication>*>(hint); }, keep);
      const auto words = nlohmann::json{{"op", "chunk"}, {"tensor", chunk.tensor}, {"offset", chunk.offset}}.dump();
      if (!send(identity, words, &bytes)) return;
    }
  }

  /// False, and the session is gone, where the worker cannot be reached.
  bool send(const std::string& identity, const std::string& words, zmq::message_t* bytes = nullptr) {
    try {
      const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
      const auto last = zmq::send_flags::dontwait;
      if (socket_.send(zmq::buffer(identity), more) &&
          socket_.send(zmq::buffer(words), bytes != nullptr ? more : last) &&
          (bytes == nullptr || socket_.send(std::move(*bytes), last)))
        return true;
    } catch (const zmq::error_t&) {  // its connection is closed
    }
    sessions_.erase(identity);
    return false;
  }

  WeightPublisher& owner_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  WeightSnapshotPointer newest_;
  std::shared_ptr<const Publication> publication_;  // of newest_, once it was asked for
  std::map<std::string, Session> sessions_;         // by the identity that ZeroMQ gives a connection
};

WeightPublisher::WeightPublisher(WeightPublisherOptions options) : options_(std::move(options)) {
  loop_ = std::make_unique<Loop>(*this);
  port_ = loop_->port;
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  require(wake_ >= 0, "weights: no event descriptor is left");
  thread_ = std::thread([this] {
    try {
      loop_->run();
    } catch (const std::exception& error) {
      log::error("weights: no worker of another process is served any more: ", error.what());
    }
  });
}

WeightPublisher::~WeightPublisher() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  ::eventfd_write(wake_, 1);
  thread_.join();
  loop_.reset();
  ::close(wake_);
}

void WeightPublisher::publish(WeightSnapshotPointer snapshot) {
  {
    const std::lock_guard lock(mutex_);
    newest_ = std::move(snapshot);
  }
  ::eventfd_write(wake_, 1);
}

std::string WeightPublisher::admit() {
  auto ticket = random_ticket();
  const std::lock_guard lock(mutex_);
  tickets_.insert(ticket);
  return ticket;
}

void WeightPublisher::revoke(const std::string& ticket) {
  {
    const std::lock_guard lock(mutex_);
    tickets_.erase(ticket);
  }
  ::eventfd_write(wake_, 1);
}

}  // namespace troupe
