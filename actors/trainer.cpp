#include "actors/trainer.h"

#include "actors/packed.h"
#include "actors/question.h"
#include "actors/shard_group.h"
#include "base/bytes.h"

namespace troupe {
namespace {

class TrainerState {
 public:
  using Pointer = trainer_actor::stateful_pointer<TrainerState>;
  static constexpr const char* name = "trainer";

  explicit TrainerState(Pointer self) : self_(self) {}
  ~TrainerState() {
    if (critic_) caf::anon_send_exit(critic_, caf::exit_reason::user_shutdown);
  }

  trainer_actor::behavior_type start(batch_source_actor source, run_control_actor control, supervisor_actor supervisor,
                                     TrainerSetup setup) {
    source_ = std::move(source);
    control_ = std::move(control);
    supervisor_ = std::move(supervisor);
    setup_ = std::move(setup);
    step_ = setup_.first_step;
    shards_.emplace(
        self_, setup_.shards, [this] { return who(); }, [this](const std::string& cause) { fail(cause); });
    if (setup_.start_critic) take_critic(setup_.start_critic(self_->system()));
    self_->set_down_handler([this](const caf::down_msg& down) {
      shards_->fell(down);
      if (critic_.address() == down.source)
        fail(concat(who(), ": the critic died: ", describe_error(down.reason, self_->system())));
    });
    return {[this](atom::next) { wait_or_load(); },
            [this](atom::arrive, const caf::strong_actor_ptr& critic) {
              if (critic_ || !is_waiting_for_critic_) return;
              take_critic(caf::actor_cast<critic_actor>(critic));
              wait_or_load();
            },
            [this](atom::interrupt) {
              // Nothing was trained: what a resume would begin from stands.
              if (std::exchange(is_waiting_for_critic_, false)) finish(true);
            },
            [this](atom::overdue) {
              if (is_waiting_for_critic_)
                fail(concat(who(), ": no worker of --role critic is ready within ",
                            std::chrono::duration<double>(setup_.wait_for_critic).count(),
                            " s (cluster.wait_for_workers_s)"));
            }};
  }

 private:
  using Next = std::function<void(nlohmann::json answer)>;  // of rank 0

  /// Who answers only after waits of its own gets more time than each of them: a batch outlasts a worker that is found
  /// frozen at the limit and the making of its work anew; a decision outlasts an evaluation and a snapshot.
  static constexpr int kPatience = 3;
  /// Longest wait for words that only explain a failure.
  static constexpr std::chrono::milliseconds kLastWords{5000};

  void take_critic(const critic_actor& critic) {
    critic_ = critic;
    self_->monitor(critic_);
  }

  void wait_or_load() {
    is_waiting_for_critic_ = setup_.wait_for_critic.count() > 0 && !critic_;
    if (is_waiting_for_critic_)
      self_->delayed_send(self_, setup_.wait_for_critic, atom::overdue_v);
    else
      load();
  }

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

  template <class... Ts>
  void ask_shards(const char* what, Next next, const Ts&... message) {
    shards_->template ask<std::string>(
        what, [next = std::move(next)](const std::string& answer) { next(nlohmann::json::parse(answer)); }, message...);
  }

  /// Without a critic `next` comes at once, with an empty answer.
  template <class... Ts>
  void ask_critic(const char* what, Next next, const Ts&... message) {
    if (!critic_) {
      next(nlohmann::json::object());
      return;
    }
    const Question question(*self_, who(), "the critic", what);
    self_->request(critic_, kPatience * setup_.limit, message...)
        .then([next = std::move(next)](const std::string& answer) { next(nlohmann::json::parse(answer)); },
              [this, question](const caf::error& error) { fail(question.failed(*self_, error)); });
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
    ask_critic(
        "load", [this](const nlohmann::json&) { load_shards(); }, atom::load_v);
  }

  void load_shards() {
    ask_shards(
        "load",
        [this](nlohmann::json description) {
          if (description.contains("unfinished")) {
            setup_.observer->say(description["unfinished"].get<std::string>());
            load_shards();
            return;
          }
          kl_coefficient_ = take_kl_coefficient(description);
          setup_.observer->call([&](RunObserver& observer) { observer.on_start(description); });
          publish([this](const nlohmann::json&) { ask_control("decide", atom::decide_v); });
        },
        atom::load_v);
  }

  /// What a rank says to the trainer alone: where the adaptive coefficient stands. The critic's rewards of the next
  /// step hold the KL at it.
  static double take_kl_coefficient(nlohmann::json& answer) {
    const auto value = answer.value("next_kl_coefficient", 0.0);
    answer.erase("next_kl_coefficient");
    return value;
  }

  void publish(Next next) { ask_shards("publish", std::move(next), atom::weights_v, int64_t{step_}); }

  void obey(const StepDecision& decision) {
    // The checkpoint first: what fails after it costs no step.
    if (decision.save) {
      auto rest = decision;
      rest.save = false;
      rest.state_json.clear();
      rest.groups = {};
      // The critic's is whole before the policy's: where a resume finds this one, it finds that of the same step.
      ask_critic(
          "save",
          [this, rest, decision](const nlohmann::json&) {
            ask_shards(
                "save", [this, rest](const nlohmann::json&) { obey(rest); }, atom::save_v, int64_t{step_}, decision);
          },
          atom::save_v, int64_t{step_});
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
        ask_critic(
            "write model",
            [this](const nlohmann::json&) {
              ask_shards(
                  "write model", [this](const nlohmann::json&) { finish(false); }, atom::write_v, std::string("model"));
            },
            atom::write_v);
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
    if (!critic_) {
      ask_shards(
          "train step", [this, local, begin](nlohmann::json metrics) { trained(local, begin, std::move(metrics)); },
          atom::train_v, local);
      return;
    }
    auto judged = std::make_shared<TrainBatch>(*local.batch);
    send_piece(std::make_shared<Judging>(Judging{local, std::move(judged), begin}), 0, 0);
  }

  /// A batch on its way to the critic and back, in pieces of whole samples: control traffic of another process stays
  /// small (a long message would hold up signs of life).
  struct Judging {
    LocalBatch local;
    std::shared_ptr<TrainBatch> judged;
    std::chrono::steady_clock::time_point begin;
    std::vector<size_t> ends = {};  // of the pieces, in samples
  };
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  /// Cuts where a piece would pass kPieceBytes; a longer sample is a piece of its own.
  static void cut_pieces(Judging& judging) {
    size_t bytes = 0;
    const auto& samples = judging.judged->trajectories;
    for (size_t s = 0; s < samples.size(); ++s) {
      const auto size = pack_trajectory(samples[s]).size();
      if (bytes > 0 && bytes + size > kPieceBytes) {
        judging.ends.push_back(s);
        bytes = 0;
      }
      bytes += size;
    }
    judging.ends.push_back(samples.size());
  }

  void send_piece(const std::shared_ptr<Judging>& judging, size_t piece, size_t first) {
    if (piece == 0) cut_pieces(*judging);
    if (piece == judging->ends.size()) {
      ask_values(judging, 0, 0);
      return;
    }
    const auto end = judging->ends[piece];
    const Question question(*self_, who(), "the critic", "batch");
    self_
        ->request(critic_, setup_.limit, atom::store_v, judging->judged->step, static_cast<int32_t>(piece),
                  static_cast<int32_t>(judging->ends.size()),
                  to_packed(pack_trajectories(std::span(judging->judged->trajectories).subspan(first, end - first))))
        .then([this, judging, piece, end](int32_t) { send_piece(judging, piece + 1, end); },
              [this, question](const caf::error& error) { fail(question.failed(*self_, error)); });
  }

  void ask_values(const std::shared_ptr<Judging>& judging, size_t piece, size_t first) {
    if (piece == judging->ends.size()) {
      train_with_values(judging->local, judging->judged, judging->begin);
      return;
    }
    const Question question(*self_, who(), "the critic", "values");
    self_->request(critic_, kPatience * setup_.limit, atom::judge_v, judging->judged->step, static_cast<int32_t>(piece))
        .then(
            [this, judging, piece, first](const Packed& values) {
              const auto end = judging->ends[piece];
              try {
                add_values(std::span(judging->judged->trajectories).subspan(first, end - first), values);
              } catch (const std::exception& error) {
                fail(concat(who(), ": ", error.what()));
                return;
              }
              ask_values(judging, piece + 1, end);
            },
            [this, question](const caf::error& error) { fail(question.failed(*self_, error)); });
  }

  /// Policy and critic learn from the same values at the same time.
  void train_with_values(const LocalBatch& local, const std::shared_ptr<TrainBatch>& judged,
                         std::chrono::steady_clock::time_point begin) {
    struct Both {
      nlohmann::json metrics = nlohmann::json::object();
      int num_missing = 2;
    };
    auto both = std::make_shared<Both>();
    const auto one = [this, local, begin, both](const nlohmann::json& metrics) {
      both->metrics.update(metrics);
      if (--both->num_missing == 0) trained(local, begin, std::move(both->metrics));
    };
    const auto kl_coefficient = kl_coefficient_;  // an answer of the policy moves it
    ask_critic("train step", one, atom::train_v, judged->step, kl_coefficient);
    ask_shards("train step", one, atom::train_v, LocalBatch{judged});
  }

  static void add_values(std::span<Trajectory> trajectories, const Packed& values) {
    ByteReader reader(bytes_of(values), "the critic's values");
    for (auto& trajectory : trajectories) {
      trajectory.values = reader.get_vector<float>();
      require(trajectory.values.size() == trajectory.tokens.size(), "the critic's values of sample ",
              trajectory.sample_id, " are ", trajectory.values.size(), ", not ", trajectory.tokens.size());
    }
    reader.expect_end();
  }

  void trained(const LocalBatch& local, std::chrono::steady_clock::time_point begin, nlohmann::json metrics) {
    const auto end = std::chrono::steady_clock::now();
    ++step_;
    kl_coefficient_ = take_kl_coefficient(metrics);
    publish([this, local, begin, end, metrics = std::move(metrics)](const nlohmann::json& sync) mutable {
      for (const auto& [key, value] : sync.items()) metrics[key] = value;
      metrics["timing/train_step(s)"] = std::chrono::duration<double>(end - begin).count();
      metrics["timing/wait_for_batch(s)"] = wait_s_;
      metrics["timing/weight_sync/total(s)"] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - end).count();
      ask_control("trained", atom::trained_v, StepReport{step_, step_, local.batch->groups, metrics.dump()});
    });
  }

  Pointer self_;
  batch_source_actor source_;
  run_control_actor control_;
  supervisor_actor supervisor_;
  TrainerSetup setup_;
  std::optional<ShardGroup<Pointer>> shards_;
  critic_actor critic_;        // none: the algorithm needs no values
  double kl_coefficient_ = 0;  // of the next step
  int64_t step_ = 0;           // done
  bool has_failed_ = false, is_winding_down_ = false, is_waiting_for_critic_ = false;
  double wait_s_ = 0;
};

}  // namespace

trainer_actor spawn_trainer(caf::actor_system& system, batch_source_actor source, run_control_actor control,
                            supervisor_actor supervisor, TrainerSetup setup) {
  return spawn_state<trainer_actor, TrainerState>(system, std::move(source), std::move(control), std::move(supervisor),
                                                  std::move(setup));
}

}  // namespace troupe
