#include "actors/guest.h"

#include <caf/io/all.hpp>

#include "actors/engine_work.h"
#include "actors/question.h"
#include "actors/remote_judge.h"
#include "actors/reward.h"
#include "actors/weight_subscriber.h"
#include "base/error.h"

namespace troupe {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kConnectLimit{5'000}, kHelloLimit{20'000}, kLeaveLimit{2'000}, kBetweenTries{500};
/// For new weights, until the rollout actor lets go of those before the last: under on_weights = "finish" it ends
/// samples first.
constexpr Milliseconds kRoomLimit{600'000};

Milliseconds milliseconds(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1000)); }

class GuestState {
 public:
  using Pointer = guest_actor::stateful_pointer<GuestState>;
  static constexpr const char* name = "guest";

  explicit GuestState(Pointer self) : self_(self), trace_(std::make_shared<Trace>(false)) {}

  guest_actor::behavior_type start(GuestSetup setup) {
    setup_ = std::move(setup);
    restarts_.emplace(setup_.restarts);
    begin_joining();
    self_->set_down_handler([this](const caf::down_msg& down) { fell(down); });
    self_->send(self_, atom::next_v);
    return {
        [this](atom::ended) {
          promise_ = self_->template make_response_promise<int32_t, std::string>();
          auto answer = promise_;
          if (is_over_) tell();
          return answer;
        },
        [this](atom::ended, const std::string& how) {
          log::info("the run ", run_, " is over: ", how);
          end(0, "");
        },
        [this](atom::arrive, const caf::strong_actor_ptr& reward) {
          if (rollout_) caf::anon_send(rollout_, atom::arrive_v, reward);
          reward_ = reward;
          introduce_grader();
        },
        [this](atom::load, int32_t seat) {
          if (!grader_ || seat != seat_) return;
          is_grader_ready_ = true;
          log::info(seat_text(), " has loaded what it needs");
          introduce_grader();
        },
        [this](atom::overdue, const std::string& why) { overdue(why); },
        [this](atom::interrupt) { interrupt(); },
        [this](atom::overdue, int32_t seat) { give_up(seat); },
        [this](atom::next) { try_joining(); },
    };
  }

 private:
  std::string where() const { return concat(setup_.options.host, ":", setup_.options.port); }

  void begin_joining() { deadline_ = self_->clock().now() + milliseconds(setup_.options.retry_s); }

  void try_joining() {
    if (has_ended_ || is_at_work()) return;
    const auto middleman = self_->system().middleman().actor_handle();
    self_
        ->request(middleman, kConnectLimit, caf::connect_atom::value, setup_.options.host,
                  static_cast<uint16_t>(setup_.options.port))
        .then(
            [this](const caf::node_id&, const caf::strong_actor_ptr& door, const std::set<std::string>& types) {
              auto& system = self_->system();
              if (door == nullptr || !system.assignable(types, system.message_types<door_actor>()))
                try_again("there is no run of this protocol");
              else
                say_hello(caf::actor_cast<door_actor>(door));
            },
            [this](const caf::error& error) { try_again(describe_error(error, self_->system())); });
  }

  void try_again(const std::string& why) {
    if (has_ended_) return;
    if (self_->clock().now() >= deadline_)
      end(1, concat("no run at ", where(), " within ", setup_.options.retry_s, " s (--retry-s): ", why));
    else
      self_->delayed_send(self_, kBetweenTries, atom::next_v);
  }

  void say_hello(const door_actor& door) {
    const auto threads = static_cast<int32_t>(setup_.options.num_threads);
    self_
        ->request(door, kHelloLimit, atom::hello_v,
                  Hello{kJoinProtocol, TROUPE_VERSION, setup_.options.token, setup_.name, setup_.model,
                        setup_.options.heartbeat_s, threads, setup_.options.role})
        .then(
            [this, door](const Welcome& welcome) {
              if (has_ended_ || is_at_work()) return;
              if (!welcome.refusal.empty()) {
                end(1, concat("the run at ", where(), " refused this worker: ", welcome.refusal));
                return;
              }
              door_ = door;
              reward_ = welcome.reward;
              try {
                seat_ = welcome.seat;
                if (setup_.options.role == "reward")
                  begin_grading(welcome);
                else if (setup_.options.role == "rollout")
                  begin_work(welcome);
                else
                  begin_judging(welcome);
                director_ = caf::actor_cast<caf::actor_addr>(welcome.director);
                self_->monitor(caf::actor_cast<caf::actor>(welcome.director));
                log::info("joined the run ", run_, " at ", where(), " as ", seat_text());
              } catch (const std::exception& error) {
                end(1, concat("the run at ", where(), " cannot be served: ", error.what()));
              }
            },
            [this](const caf::error& error) { try_again(describe_error(error, self_->system())); });
  }

  void begin_work(const Welcome& welcome) {
    const auto settings = parse_worker_settings(nlohmann::json::parse(welcome.settings_json));
    require(welcome.file_names.size() == welcome.file_contents.size(), "welcome: files without a name");
    ModelDescription description{settings.model_config, {}};
    for (size_t i = 0; i < welcome.file_names.size(); ++i)
      description.text_files[welcome.file_names[i]] = welcome.file_contents[i];
    const auto model = std::make_shared<const ModelSource>(description);
    auto engine = settings.engine;
    engine.num_threads = setup_.options.num_threads;
    const auto board = board_ = std::make_shared<WeightBoard>(1);
    const auto dtype = compute_dtype(settings.dtype);
    const auto limit = milliseconds(settings.score_limit_s);
    run_ = settings.run;

    RolloutSetup rollout;
    rollout.make_work = [=, make = setup_.make_work](int worker) {
      return make ? make(worker)
                  : make_engine_work(model, engine, settings.sampling, settings.baseline_index, settings.turns);
    };
    patience_ = milliseconds(settings.lost_after_s);
    rollout.board = board;
    rollout.trace = trace_;
    rollout.credit = settings.credit;
    rollout.score_limit = limit;
    rollout_ = spawn_rollout(self_->system(), seat_, caf::actor_cast<director_actor>(welcome.director),
                             caf::actor_cast<reward_actor>(welcome.reward), std::move(rollout));
    self_->monitor(rollout_);

    WeightSubscriberOptions weights;
    weights.endpoint = concat("tcp://", setup_.options.host, ":", welcome.weights_port);
    weights.ticket = welcome.ticket;
    weights.silence_limit = milliseconds(settings.lost_after_s);
    weights.on_weights = [=, rollout = rollout_, threads = engine.num_threads](WeightSnapshot snapshot) {
      board->wait_for_room(kRoomLimit);
      const bool is_first = board->latest() == nullptr;
      board->publish(pack_model(model->config(), snapshot, dtype, threads));
      log::write(is_first ? log::Level::kInfo : log::Level::kDebug,
                 concat("weights of version ", snapshot.version, " are here"));
      caf::anon_send<caf::message_priority::high>(rollout, atom::weights_v, int64_t{snapshot.version});
    };
    weights_ = std::make_unique<WeightSubscriber>(model->config(), std::move(weights));
  }

  bool is_at_work() const { return rollout_ || grader_ || critic_; }
  std::string seat_text() const { return concat(setup_.options.role, " ", seat_); }
  caf::strong_actor_ptr worker() const {
    if (critic_) return caf::actor_cast<caf::strong_actor_ptr>(critic_);
    return rollout_ ? caf::actor_cast<caf::strong_actor_ptr>(rollout_)
                    : caf::actor_cast<caf::strong_actor_ptr>(grader_);
  }

  void begin_grading(const Welcome& welcome) {
    const auto settings = parse_grader_settings(nlohmann::json::parse(welcome.settings_json));
    run_ = settings.run;
    patience_ = milliseconds(settings.lost_after_s);
    for (const auto& reward : settings.rewards) make_reward_function(reward);  // wrong settings are found here
    RewardSetup setup;
    setup.make_score = [rewards = settings.rewards, threads = setup_.options.num_threads] {
      at::set_num_threads(threads);  // of this thread, and of those that rules begin later
      const auto rules = std::make_shared<RewardSet>(rewards);
      return ScoreFunction([rules](Trajectory& trajectory) { rules->score(trajectory); });
    };
    setup.trace = trace_;
    setup.num_scorers = num_parallel_scores(settings.rewards);
    setup.on_ready = tell_loaded();
    is_grader_ready_ = false;
    grader_ = spawn_grader(self_->system(), std::move(setup));
    self_->monitor(grader_);
  }

  std::function<void()> tell_loaded() {
    return [me = caf::actor_cast<caf::actor_addr>(self_), seat = seat_] {
      if (const auto guest = caf::actor_cast<caf::strong_actor_ptr>(me))
        caf::anon_send(caf::actor_cast<guest_actor>(guest), atom::load_v, int32_t{seat});
    };
  }

  void begin_judging(const Welcome& welcome) {
    const auto settings = parse_judge_settings(nlohmann::json::parse(welcome.settings_json));
    run_ = settings.run;
    patience_ = milliseconds(settings.lost_after_s);
    if (setup_.options.role == "critic") {
      critic_ = start_remote_critic(self_->system(), settings, setup_.options, trace_);
      self_->monitor(critic_);
      // The trainer has it loaded.
      caf::anon_send(caf::actor_cast<trainer_actor>(reward_), atom::arrive_v,
                     caf::actor_cast<caf::strong_actor_ptr>(critic_));
      return;
    }
    is_grader_ready_ = false;
    grader_ = start_remote_reference(self_->system(), settings, setup_.options, trace_, tell_loaded());
    self_->monitor(grader_);
  }

  /// Not before its rules are loaded: until then it could not answer.
  void introduce_grader() {
    if (!grader_ || !is_grader_ready_) return;
    caf::anon_send(caf::actor_cast<reward_pool_actor>(reward_), atom::arrive_v,
                   caf::actor_cast<caf::strong_actor_ptr>(grader_), caf::actor_cast<caf::strong_actor_ptr>(self_));
  }

  /// Its thread may be in the middle of a step; nobody waits for it.
  void end_work() {
    if (const auto who = worker()) self_->demonitor(caf::actor_cast<caf::actor_addr>(who));
    dismiss();
    rollout_ = rollout_actor();
    grader_ = grader_actor();
    critic_ = critic_actor();
    reward_ = nullptr;
    director_ = {};
    door_ = door_actor();
  }

  /// The worker is told to end; it is down once it has said its last words.
  void dismiss() {
    if (board_) board_->close();  // the subscriber's thread may wait there
    weights_.reset();
    board_.reset();
    if (const auto who = worker())
      caf::anon_send_exit(caf::actor_cast<caf::actor>(who), caf::exit_reason::user_shutdown);
  }

  void fell(const caf::down_msg& down) {
    if (!is_at_work()) return;
    if (has_ended_) {
      if (down.source == caf::actor_cast<caf::actor_addr>(worker())) be_over();
      return;
    }
    const auto cause = describe_error(down.reason, self_->system());
    if (down.source == director_) {
      log::warning("the run ", run_, " at ", where(), " is lost (", cause, "); trying to join again for ",
                   setup_.options.retry_s, " s");
      end_work();
      begin_joining();
      self_->delayed_send(self_, kBetweenTries, atom::next_v);
    } else if (down.source == caf::actor_cast<caf::actor_addr>(worker())) {
      const auto pause = restarts_->next_pause(self_->clock().now());
      if (!pause) {
        end(1, concat(seat_text(), " fell ", restarts_->num_restarts() + 1, " times: ", cause));
        return;
      }
      log::warning(seat_text(), " fell: ", cause, "; joining again in ", pause->count(), " ms");
      end_work();
      begin_joining();
      self_->delayed_send(self_, *pause, atom::next_v);
    }
  }

  /// A worker that is only slow hears it, falls and joins anew. One whose engine or rule hangs never looks up again,
  /// and what it holds of the machine goes with the process alone.
  void overdue(const std::string& why) {
    if (has_ended_ || !is_at_work()) return;
    why_overdue_ = why;
    log::warning(seat_text(), " is overdue: ", why);
    caf::anon_send_exit(caf::actor_cast<caf::actor>(worker()), caf::exit_reason::user_shutdown);
    self_->delayed_send(self_, patience_, atom::overdue_v, int32_t{seat_});
  }

  void give_up(int32_t seat) {
    if (!is_at_work() || seat != seat_) return;
    if (has_ended_) {
      be_over();
      return;
    }
    note_end(1, concat(seat_text(), " hangs: it ", why_overdue_, ", and did not end within ",
                       patience_.count() / 1000.0, " s"));
    be_over();
  }

  void interrupt() {
    if (!is_at_work()) {
      end(130, "");
      return;
    }
    const Question question(*self_, "worker", "the gate", "leave");
    self_->request(door_, kLeaveLimit, atom::leave_v, int32_t{seat_})
        .then([this](int32_t) { end(130, ""); },
              [this, question](const caf::error& error) {
                question.failed(*self_, error);
                end(130, "");
              });
  }

  /// A message on its way from the worker when the network is taken down would keep the worker's thread, and with it
  /// the process, for ever: it goes down first, for as long as it may take.
  void end(int32_t code, const std::string& cause) {
    if (has_ended_) return;
    note_end(code, cause);
    if (!is_at_work()) {
      be_over();
      return;
    }
    dismiss();
    self_->delayed_send(self_, patience_, atom::overdue_v, int32_t{seat_});
  }

  void note_end(int32_t code, const std::string& cause) {
    has_ended_ = true;
    code_ = code;
    cause_ = cause;
  }

  void be_over() {
    is_over_ = true;
    tell();  // first: what the work holds may take its time to end, or hang
    end_work();
  }

  void tell() {
    if (!promise_.pending()) return;
    promise_.deliver(code_, cause_);
    self_->quit();
  }

  Pointer self_;
  std::shared_ptr<Trace> trace_;
  GuestSetup setup_;
  std::optional<RestartPolicy> restarts_;
  Question::Time deadline_{};
  std::string run_;
  int32_t seat_ = -1;
  Milliseconds patience_{0};
  std::string why_overdue_;
  door_actor door_;
  caf::actor_addr director_;
  rollout_actor rollout_;  // set while at work, as is the grader of roles "reward" and "reference"
  grader_actor grader_;
  critic_actor critic_;
  bool is_grader_ready_ = false;
  caf::strong_actor_ptr reward_;  // whom a rollout actor asks; who asks the others
  std::shared_ptr<WeightBoard> board_;
  std::unique_ptr<WeightSubscriber> weights_;
  bool has_ended_ = false;  // nothing new begins
  bool is_over_ = false;    // and the worker is down, or was given up
  int32_t code_ = 1;
  std::string cause_;
  caf::typed_response_promise<int32_t, std::string> promise_;
};

}  // namespace

guest_actor spawn_guest(caf::actor_system& system, GuestSetup setup) {
  return spawn_state<guest_actor, GuestState>(system, std::move(setup));
}

}  // namespace troupe
