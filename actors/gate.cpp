#include "actors/gate.h"

#include <caf/io/all.hpp>

#include "actors/spawn.h"
#include "base/error.h"

namespace troupe {
namespace {

/// A stranger's word for the log: short and printable.
std::string printable(const std::string& text) {
  std::string shown;
  for (const char c : text.substr(0, 100)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown.empty() ? "somebody" : shown;
}

class GateState {
 public:
  using Pointer = gate_actor::stateful_pointer<GateState>;
  static constexpr const char* name = "gate";

  explicit GateState(Pointer self) : self_(self) {}

  gate_actor::behavior_type start(director_actor director, reward_actor reward, GateSetup setup) {
    director_ = std::move(director);
    askers_["rollout"] = askers_["reward"] = caf::actor_cast<caf::strong_actor_ptr>(reward);
    setup_ = std::move(setup);
    next_seat_ = setup_.first_seat;
    self_->set_down_handler([this](const caf::down_msg& down) { gone(down); });
    return {
        [this](atom::hello, const Hello& hello) { return welcome(hello); },
        [this](atom::leave, int32_t seat) { return leave(seat); },
        [this](atom::ended, const std::string& how) { return close(how); },
        [this](atom::arrive, const std::string& role, const caf::strong_actor_ptr& who) { arrive(role, who); },
        [this](atom::overdue, int32_t seat, const std::string& why) {
          for (const auto& [address, guest] : guests_)
            if (guest.seat == seat) caf::anon_send(guest.handle, atom::overdue_v, why);
        },
        [this](atom::next) { say_closed(); },
    };
  }

 private:
  struct Guest {
    guest_actor handle;
    std::string role, name, ticket;  // ticket: "" where no weights are wanted
    int32_t seat = 0;
    std::string seat_text() const { return concat(role, " ", seat); }
  };

  caf::actor_addr sender() const { return caf::actor_cast<caf::actor_addr>(self_->current_sender()); }

  /// Rollout workers ask the reward; workers of the other roles are asked.
  void arrive(const std::string& role, const caf::strong_actor_ptr& who) {
    askers_[role] = who;
    if (role == "reward") askers_["rollout"] = who;
    for (const auto& [address, guest] : guests_)
      if (askers_[guest.role] == who) caf::anon_send(guest.handle, atom::arrive_v, who);
  }

  caf::result<Welcome> welcome(const Hello& hello) {
    Welcome answer;
    answer.refusal = closing_.pending() || is_closed_ ? "the run is over" : refusal(hello, setup_.rules);
    const auto& who = self_->current_sender();
    if (answer.refusal.empty() && who == nullptr) answer.refusal = "it does not say who asks";
    if (!answer.refusal.empty()) {
      setup_.observer->say(concat("a worker was refused: ", printable(hello.name), ": ", answer.refusal));
      return answer;
    }
    forget(sender());  // it joins anew
    const auto asker = askers_.find(hello.role);
    if (asker == askers_.end()) return caf::make_error(ec::failed, std::string("the run has only begun"));
    if (hello.role == "critic" && has_guest("critic")) {
      answer.refusal = "the run has a critic already";
      setup_.observer->say(concat("a worker was refused: ", printable(hello.name), ": ", answer.refusal));
      return answer;
    }
    Guest guest{caf::actor_cast<guest_actor>(who), hello.role, printable(hello.name), {}, next_seat_++};
    self_->monitor(guest.handle);
    answer.seat = guest.seat;
    if (hello.role == "reward") {
      answer.settings_json = to_json(setup_.grader).dump();
    } else if (hello.role != "rollout") {
      answer.settings_json = setup_.judges.at(hello.role);
    } else {
      answer.settings_json = to_json(setup_.settings).dump();
      for (const auto& [file, content] : setup_.text_files) {
        answer.file_names.push_back(file);
        answer.file_contents.push_back(content);
      }
      guest.ticket = setup_.publisher->admit();
      answer.ticket = guest.ticket;
      answer.weights_port = static_cast<uint16_t>(setup_.publisher->port());
    }
    answer.director = caf::actor_cast<caf::strong_actor_ptr>(director_);
    answer.reward = asker->second;
    setup_.observer->say(concat(guest.seat_text(), " joins: ", guest.name, ", ", hello.threads, " threads"));
    guests_[sender()] = std::move(guest);
    count();
    return answer;
  }

  /// Answers 1 where the seat was the asker's.
  int32_t leave(int32_t seat) {
    const auto found = guests_.find(sender());
    if (found == guests_.end() || found->second.seat != seat) return 0;
    setup_.observer->say(concat(found->second.seat_text(), " leaves: ", found->second.name));
    if (found->second.role == "rollout") caf::anon_send(director_, atom::leave_v, int32_t{seat});
    forget(sender());
    return 1;
  }

  void gone(const caf::down_msg& down) {
    const auto found = guests_.find(down.source);
    if (found == guests_.end()) return;
    if (!closing_.pending())
      setup_.observer->say(concat(found->second.seat_text(), " is lost: ", found->second.name, ": ",
                                  describe_error(down.reason, self_->system())));
    forget(down.source);
  }

  bool has_guest(const std::string& role) const {
    return std::any_of(guests_.begin(), guests_.end(), [&](const auto& entry) { return entry.second.role == role; });
  }

  void forget(const caf::actor_addr& address) {
    const auto found = guests_.find(address);
    if (found == guests_.end()) return;
    if (!found->second.ticket.empty()) setup_.publisher->revoke(found->second.ticket);
    guests_.erase(found);
    count();
    if (guests_.empty()) say_closed();
  }

  void count() {
    *setup_.num_joined = static_cast<int>(std::count_if(
        guests_.begin(), guests_.end(), [](const auto& entry) { return entry.second.role == "rollout"; }));
  }

  caf::result<int32_t> close(const std::string& how) {
    auto promise = self_->template make_response_promise<int32_t>();
    closing_ = promise;
    for (const auto& [address, guest] : guests_) caf::anon_send(guest.handle, atom::ended_v, how);
    if (guests_.empty())
      say_closed();
    else
      self_->delayed_send(self_, setup_.farewell_limit, atom::next_v);
    return promise;
  }

  void say_closed() {
    if (!closing_.pending()) return;
    closing_.deliver(static_cast<int32_t>(guests_.size()));
    closing_ = {};
    is_closed_ = true;
  }

  Pointer self_;
  director_actor director_;
  std::map<std::string, caf::strong_actor_ptr> askers_;  // by role: whom rollout workers ask, who asks the others
  GateSetup setup_;
  int32_t next_seat_ = 0;
  std::map<caf::actor_addr, Guest> guests_;
  caf::typed_response_promise<int32_t> closing_;
  bool is_closed_ = false;
};

}  // namespace

gate_actor spawn_gate(caf::actor_system& system, director_actor director, reward_actor reward, GateSetup setup) {
  const auto bind = setup.bind;
  const auto wanted = static_cast<uint16_t>(setup.port);
  const auto observer = setup.observer;
  const auto weights_port = setup.publisher->port();
  auto gate = spawn_state<gate_actor, GateState>(system, std::move(director), std::move(reward), std::move(setup));
  const auto port = system.middleman().publish(gate, wanted, bind.c_str(), true);
  if (!port) {
    caf::anon_send_exit(gate, caf::exit_reason::user_shutdown);
    fail("cluster: cannot listen at ", bind, ":", wanted, ": ", describe_error(port.error(), system));
  }
  observer->say(concat("workers may join: troupe worker --join ", bind == "0.0.0.0" ? "HOST" : bind, ":", *port,
                       " (weights come from port ", weights_port, ")"));
  return gate;
}

}  // namespace troupe
