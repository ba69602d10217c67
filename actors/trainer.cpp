#include "actors/trainer.h"

#include <set>

#include "actors/question.h"
#include "actors/shard.h"

namespace troupe {
namespace {

class TrainerState {
 public:
  using Pointer = trainer_actor::stateful_pointer<TrainerState>;
  static constexpr const char* name = "trainer";

  explicit TrainerState(Pointer self) : self_(self) {}
  ~TrainerState() {
    for (const auto& shard : shards_) caf::anon_send_exit(shard, caf::exit_reason::user_shutdown);
  }

  trainer_actor::behavior_type start(batch_source_actor source, run_control_actor control, supervisor_actor supervisor,
                                     TrainerSetup setup) {
    source_ = std::move(source);
    control_ = std::move(control);
    supervisor_ = std::move(supervisor);
    setup_ = std::move(setup);
    step_ = setup_.first_step;
    for (int rank = 0; rank < setup_.num_ranks; ++rank) {
      shards_.push_back(setup_.start_shard
                            ? setup_.start_shard(self_->system(), rank)
                            : spawn_shard(self_->system(), rank, setup_.make_work, setup_.trace, setup_.detached));
      self_->monitor(shards_.back());
    }
    self_->set_down_handler([this](const caf::down_msg& down) {
      for (size_t rank = 0; rank < shards_.size(); ++rank)
        if (shards_[rank].address() == down.source)
          fail(concat(who(), ": shard ", rank, " died: ", describe_error(down.reason, self_->system())));
    });
    return {[this](atom::next) { load(); }};
  }

 private:
  using Next = std::function<void(nlohmann::json answer_of_rank_0)>;

  /// Who answers only after waits of its own gets more time than each of them: a batch outlasts a worker that is found
  /// frozen at the limit and the making of its work anew; a decision outlasts an evaluation and a snapshot.
  static constexpr int kPatience = 3;
  /// Longest wait for words that only explain a failure.
  static constexpr std::chrono::milliseconds kLastWords{5000};

  std::string who() const { return concat("trainer, step ", step_ + 1); }

  /// The first cause counts; what follows from it is not told again.
  void fail(const std::string& cause) {
    if (has_failed_) return;
    has_failed_ = true;
    self_->quit(caf::make_error(ec::failed, cause));
  }

  /// No batch: the shards are sound, so what was trained is saved before the run ends with this cause.
  void wind_down(const std::string& cause) {
    if (is_winding_down_) {
      fail(cause);
      return;
    }
    is_winding_down_ = true;
    caf::anon_send(supervisor_, atom::failed_v, cause);
    caf::anon_send(control_, atom::interrupt_v);
    ask_control("decide", atom::decide_v);
  }

  /// A time-out says who waits for whom: the run control tells what it and its neighbours hold.
  void wind_down_with_status(const std::string& cause) {
    const Question question(*self_, who(), "the run control", "status");
    self_->request(control_, std::min(setup_.limit, kLastWords), atom::status_v)
        .then(
            [this, cause](const std::string& status) {
              wind_down(concat(cause, "; ", nlohmann::json::parse(status).at("text").get<std::string>()));
            },
            [this, cause, question](const caf::error& error) {
              wind_down(concat(cause, "; ", question.failed(*self_, error)));
            });
  }

  /// Asks every rank and goes on when all have answered.
  template <class... Ts>
  void ask_shards(const char* what, Next next, const Ts&... message) {
    struct Gather {
      std::set<size_t> missing;  // ranks
      nlohmann::json answer;
      Next next;
    };
    auto gather = std::make_shared<Gather>();
    gather->next = std::move(next);
    for (size_t rank = 0; rank < shards_.size(); ++rank) gather->missing.insert(rank);
    for (size_t rank = 0; rank < shards_.size(); ++rank) {
      const Question question(*self_, who(), concat("shard ", rank, " of ", shards_.size()), what);
      self_->request(shards_[rank], setup_.limit, message...)
          .then(
              [this, rank, gather](const std::string& answer) {
                if (rank == 0) gather->answer = nlohmann::json::parse(answer);
                gather->missing.erase(rank);
                if (gather->missing.empty()) gather->next(std::move(gather->answer));
              },
              [this, gather, question](const caf::error& error) {
                auto cause = question.failed(*self_, error);
                if (is_timeout(error)) {
                  cause += "; no answer yet from";
                  for (const auto missing : gather->missing) cause += concat(" rank ", missing);
                }
                fail(cause);
              });
    }
  }

  template <class... Ts>
  void ask_control(const char* what, const Ts&... message) {
    const Question question(*self_, who(), "the run control", what);
    self_
        ->request(control_, is_winding_down_ ? std::min(setup_.limit, kLastWords) : kPatience * setup_.limit,
                  message...)
        .then([this](const StepDecision& decision) { obey(decision); },
              [this, question](const caf::error& error) { fail(question.failed(*self_, error)); });
  }

  void load() {
    ask_shards(
        "load",
        [this](nlohmann::json description) {
          if (description.contains("unfinished")) {
            setup_.observer->say(description["unfinished"].get<std::string>());
            load();
            return;
          }
          setup_.observer->call([&](RunObserver& observer) { observer.on_start(description); });
          publish([this](const nlohmann::json&) { ask_control("decide", atom::decide_v); });
        },
        atom::load_v);
  }

  void publish(Next next) { ask_shards("publish", std::move(next), atom::weights_v, int64_t{step_}); }

  void obey(const StepDecision& decision) {
    // The checkpoint first: what fails after it costs no step.
    if (decision.save) {
      auto rest = decision;
      rest.save = false;
      rest.state_json.clear();
      rest.groups = {};
      ask_shards(
          "save", [this, rest](const nlohmann::json&) { obey(rest); }, atom::save_v, int64_t{step_}, decision);
    } else if (decision.export_best) {
      auto rest = decision;
      rest.export_best = false;
      ask_shards(
          "write best model", [this, rest](const nlohmann::json&) { obey(rest); }, atom::write_v, std::string("best"));
    } else if (decision.validate && setup_.validation.batch != nullptr) {
      ask_shards(
          "validate",
          [this](const nlohmann::json& metrics) { ask_control("validate", atom::validate_v, metrics.dump()); },
          atom::validate_v, setup_.validation);
    } else if (decision.stop) {
      if (!decision.interrupted && setup_.write_model) {
        ask_shards(
            "write model", [this](const nlohmann::json&) { finish(false); }, atom::write_v, std::string("model"));
      } else {
        finish(decision.interrupted);
      }
    } else {
      ask_batch();
    }
  }

  void finish(bool interrupted) { caf::anon_send(supervisor_, atom::finished_v, interrupted); }

  void ask_batch() {
    const auto asked = std::chrono::steady_clock::now();
    const Question question(*self_, who(), "the batch source", "batch");
    self_->request(source_, kPatience * setup_.limit, atom::batch_v, int64_t{step_ + 1})
        .then(
            [this, asked](const LocalBatch& local) {
              wait_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
              train(local);
            },
            [this, question](const caf::error& error) {
              if (error == ec::interrupted)
                ask_control("decide", atom::decide_v);
              else if (is_timeout(error))
                wind_down_with_status(question.failed(*self_, error));
              else
                wind_down(question.failed(*self_, error));
            });
  }

  void train(const LocalBatch& local) {
    const auto begin = std::chrono::steady_clock::now();
    ask_shards(
        "train step",
        [this, local, begin](nlohmann::json metrics) {
          const auto trained = std::chrono::steady_clock::now();
          ++step_;
          publish([this, local, begin, trained, metrics = std::move(metrics)](const nlohmann::json& sync) mutable {
            for (const auto& [key, value] : sync.items()) metrics[key] = value;
            metrics["timing/train_step(s)"] = std::chrono::duration<double>(trained - begin).count();
            metrics["timing/wait_for_batch(s)"] = wait_s_;
            metrics["timing/weight_sync/total(s)"] =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - trained).count();
            ask_control("trained", atom::trained_v, StepReport{step_, step_, local.batch->groups, metrics.dump()});
          });
        },
        atom::train_v, local);
  }

  Pointer self_;
  batch_source_actor source_;
  run_control_actor control_;
  supervisor_actor supervisor_;
  TrainerSetup setup_;
  std::vector<shard_actor> shards_;
  int64_t step_ = 0;  // done
  bool has_failed_ = false, is_winding_down_ = false;
  double wait_s_ = 0;
};

}  // namespace

trainer_actor spawn_trainer(caf::actor_system& system, batch_source_actor source, run_control_actor control,
                            supervisor_actor supervisor, TrainerSetup setup) {
  return spawn_state<trainer_actor, TrainerState>(system, std::move(source), std::move(control), std::move(supervisor),
                                                  std::move(setup));
}

}  // namespace troupe
