#include "actors/supervisor.h"

#include "actors/spawn.h"

namespace troupe {
namespace {

class SupervisorState {
 public:
  using Pointer = supervisor_actor::stateful_pointer<SupervisorState>;
  static constexpr const char* name = "supervisor";

  explicit SupervisorState(Pointer self) : self_(self) {}

  supervisor_actor::behavior_type start(CastList cast) {
    cast_ = std::move(cast);
    self_->set_down_handler([this](const caf::down_msg& down) { fell(down); });
    start_all();
    return {
        [this](atom::ended) {
          promise_ = self_->template make_response_promise<int32_t, std::string>();
          auto answer = promise_;
          if (ended_) tell();
          return answer;
        },
        [this](atom::finished, bool interrupted) {
          end(!failure_.empty() ? 1 : interrupted ? 130 : 0, failure_);
        },
        [this](atom::failed, const std::string& cause) { note_failure(cause); },
        [this](atom::interrupt) { interrupt(); },
        [this](atom::overdue, const std::string& role, int32_t seat, const caf::strong_actor_ptr& who,
               const std::string& why) {
          overdue({role, seat}, who, why);
        },
        [this](atom::next, const std::string& role, int32_t seat) { restart(role, seat); },
    };
  }

 private:
  /// The gate's own limit is shorter.
  static constexpr std::chrono::milliseconds kFarewellLimit{5'000};

  struct Seat {
    std::string role;
    int32_t seat = 0;
    bool operator<(const Seat& other) const { return std::tie(role, seat) < std::tie(other.role, other.seat); }
    std::string text() const { return role == "rollout" ? concat(role, " ", seat) : role; }
  };

  template <class Handle>
  Handle watch(const Handle& handle, const std::string& role, int32_t seat = 0) {
    self_->monitor(handle);
    seats_[handle.address()] = {role, seat};
    everybody_[{role, seat}] = caf::actor_cast<caf::strong_actor_ptr>(handle);
    return handle;
  }

  void start_all() {
    auto& system = self_->system();
    const supervisor_actor me{self_};
    batch_source_actor source;
    if (cast_.start_data) {
      std::tie(source, control_) = cast_.start_data(system);
      watch(control_, "data");
    } else {
      buffer_ = watch(cast_.start_buffer(system), "buffer");
      evaluator_actor evaluator;
      if (cast_.start_evaluator) evaluator = watch(cast_.start_evaluator(system), "evaluator");
      director_ = watch(cast_.start_director(system, buffer_, evaluator, me), "director");
      control_ = director_;
      source = buffer_;
      start_reference();
      start_reward();
    }
    if (cast_.start_gate) {
      try {
        gate_ = watch(cast_.start_gate(system, director_, reward_), "gate");
      } catch (const Error& error) {
        end(1, error.what());
        return;
      }
    }
    trainer_ = watch(cast_.start_trainer(system, source, control_, me), "trainer");
    for (int32_t seat = 0; seat < cast_.num_rollouts; ++seat) start_rollout(seat);
    if (cast_.start_reporter) reporter_ = cast_.start_reporter(system, control_);
    introduce_pool();
    introduce("critic", trainer_);
    if (reference_) introduce("reference", reference_);
    caf::anon_send(trainer_, atom::next_v);
  }

  void start_reference() {
    if (!cast_.start_reference) return;
    reference_ = watch(cast_.start_reference(self_->system(), buffer_, supervisor_actor{self_}), "reference");
  }

  void start_reward() {
    const sample_store_actor next = reference_ ? reference_ : sample_store_actor(buffer_);
    reward_ = watch(cast_.start_reward(self_->system(), next, supervisor_actor{self_}), "reward");
  }

  /// To workers of other processes: who asks those of this role.
  template <class Handle>
  void introduce(const std::string& role, const Handle& who) {
    if (gate_) caf::anon_send(gate_, atom::arrive_v, role, caf::actor_cast<caf::strong_actor_ptr>(who));
  }

  void introduce_pool() {
    if (reporter_ && cast_.reward_is_pool)
      caf::anon_send(reporter_, atom::arrive_v, caf::actor_cast<caf::strong_actor_ptr>(reward_));
  }

  void start_rollout(int32_t seat) {
    rollouts_[seat] = watch(cast_.start_rollout(self_->system(), seat, director_, reward_), "rollout", seat);
  }

  void fell(const caf::down_msg& down) {
    const auto found = seats_.find(down.source);
    if (found == seats_.end() || ended_) return;
    const auto seat = found->second;
    seats_.erase(found);
    everybody_.erase(seat);
    const auto cause = describe_error(down.reason, self_->system());
    if (seat.role == "rollout") rollouts_.erase(seat.seat);
    if (seat.role == "rollout" || seat.role == "reward" || seat.role == "reference") {
      replace(seat, cause);
    } else if (seat.role == "gate") {
      gate_ = gate_actor();
      cast_.observer->say("the gate fell, no other worker can join: " + cause);
    } else if (seat.role == "evaluator") {
      cast_.observer->say("the evaluator fell and is not restarted: " + cause);
    } else {
      end(1, concat(failure_.empty() ? "" : failure_ + "; then ", seat.text(), " fell: ", cause));
    }
  }

  void note_failure(const std::string& cause) {
    if (!failure_.empty() || ended_) return;
    failure_ = cause;
    log::error(cause, " (the run winds down)");
  }

  void interrupt() {
    if (control_) caf::anon_send(control_, atom::interrupt_v);
    if (trainer_) caf::anon_send(trainer_, atom::interrupt_v);
  }

  /// The trainer and the director are sound: they save what was trained, then the run ends with the cause.
  void wind_down(const std::string& cause) {
    note_failure(cause);
    interrupt();
  }

  bool is_anybody_left() const {
    return !rollouts_.empty() || num_restarting_ > 0 || (cast_.num_joined && cast_.num_joined() > 0);
  }

  void replace(const Seat& seat, const std::string& cause) {
    auto& policy = policies_.try_emplace(seat, cast_.restarts).first->second;
    const auto pause = policy.next_pause(self_->clock().now());
    if (pause) {
      cast_.observer->say(concat(seat.text(), " fell: ", cause, "; restart ", policy.num_restarts(), " of ",
                                 cast_.restarts.num_restarts, " in ", pause->count(), " ms"));
      if (seat.role == "rollout") ++num_restarting_;
      self_->delayed_send(self_, *pause, atom::next_v, seat.role, seat.seat);
    } else if (seat.role == "rollout" && !cast_.needs_every_rollout && is_anybody_left()) {
      cast_.observer->say(
          concat(seat.text(), " is given up after ", cast_.restarts.num_restarts, " restarts: ", cause));
    } else {
      wind_down(concat(seat.text(), " fell ", cast_.restarts.num_restarts + 1,
                       " times, nobody else can do its work: ", cause));
    }
  }

  void restart(const std::string& role, int32_t seat) {
    if (ended_) return;
    if (role == "rollout") {
      --num_restarting_;
      start_rollout(seat);
      return;
    }
    if (role == "reward" && everybody_.contains({"reward", 0})) return;  // came with a new reference
    if (role == "reference") {
      start_reference();
      introduce("reference", reference_);
      // The reward hands samples to the fallen one, and whoever asked it waits for a new one.
      forget({"reward", 0});
    }
    start_reward();
    for (const auto& [id, rollout] : rollouts_)
      caf::anon_send(rollout, atom::arrive_v, caf::actor_cast<caf::strong_actor_ptr>(reward_));
    introduce("reward", reward_);
    introduce_pool();
  }

  /// Frees the seat, whatever becomes of who sat there.
  void forget(const Seat& seat) {
    const auto found = everybody_.find(seat);
    if (found == everybody_.end()) return;
    seats_.erase(caf::actor_cast<caf::actor_addr>(found->second));
    caf::anon_send_exit(caf::actor_cast<caf::actor>(found->second), caf::exit_reason::kill);
    everybody_.erase(found);
  }

  void overdue(const Seat& seat, const caf::strong_actor_ptr& who, const std::string& why) {
    const auto found = everybody_.find(seat);
    if (seat.role == "rollout" && seat.seat >= cast_.num_rollouts) {  // of another process, which may join anew
      if (gate_)
        caf::anon_send(gate_, atom::overdue_v, int32_t{seat.seat}, why);
      else
        caf::anon_send_exit(caf::actor_cast<caf::actor>(who), caf::exit_reason::kill);
      return;
    }
    if (ended_ || found == everybody_.end() || found->second != who) return;  // replaced already
    // It may never look into its mailbox again: its seat is free from now on, whatever becomes of its thread.
    forget(seat);
    if (seat.role == "rollout") rollouts_.erase(seat.seat);
    replace(seat, why);
  }

  void end(int32_t code, const std::string& cause) {
    if (ended_) return;
    ended_ = true;
    code_ = code;
    cause_ = cause;
    if (!gate_) {
      dismiss_all();
      return;
    }
    // Workers of other processes hear it first: afterwards they would take the run for lost.
    const auto how = code == 0 ? std::string("done") : code == 130 ? std::string("interrupted") : "failed: " + cause;
    self_->request(std::exchange(gate_, gate_actor()), kFarewellLimit, atom::ended_v, how)
        .then([this](int32_t) { dismiss_all(); }, [this](const caf::error&) { dismiss_all(); });
  }

  void dismiss_all() {
    // Sources first, then workers, then sinks; each dies with its own state.
    for (const char* role :
         {"gate", "director", "data", "rollout", "reward", "reference", "evaluator", "buffer", "trainer"})
      for (const auto& [seat, handle] : everybody_)
        if (seat.role == role)
          caf::anon_send_exit(caf::actor_cast<caf::actor>(handle), caf::exit_reason::user_shutdown);
    everybody_.clear();
    rollouts_.clear();
    if (reporter_) caf::anon_send_exit(reporter_, caf::exit_reason::user_shutdown);
    reporter_ = reporter_actor();
    buffer_ = buffer_actor();
    reward_ = reward_actor();
    reference_ = sample_store_actor();
    director_ = director_actor();
    control_ = run_control_actor();
    trainer_ = trainer_actor();
    cast_ = {};
    tell();
  }

  void tell() {
    if (!promise_.pending() || gate_ || !everybody_.empty()) return;  // dismiss_all tells
    promise_.deliver(code_, cause_);
    self_->quit();
  }

  Pointer self_;
  CastList cast_;
  std::map<caf::actor_addr, Seat> seats_;
  std::map<Seat, caf::strong_actor_ptr> everybody_;
  std::map<Seat, RestartPolicy> policies_;
  std::map<int32_t, rollout_actor> rollouts_;
  buffer_actor buffer_;
  reward_actor reward_;
  sample_store_actor reference_;  // none: rewards store in the buffer
  director_actor director_;
  run_control_actor control_;
  trainer_actor trainer_;
  gate_actor gate_;
  reporter_actor reporter_;
  int num_restarting_ = 0;  // rollouts
  bool ended_ = false;
  int32_t code_ = 1;
  std::string failure_;  // the run winds down with it
  std::string cause_;
  caf::typed_response_promise<int32_t, std::string> promise_;
};

}  // namespace

supervisor_actor spawn_supervisor(caf::actor_system& system, CastList cast) {
  return spawn_state<supervisor_actor, SupervisorState>(system, std::move(cast));
}

}  // namespace troupe
