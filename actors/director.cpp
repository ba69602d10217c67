#include "actors/director.h"

#include "actors/busy.h"
#include "actors/director_status.h"
#include "actors/question.h"
#include "base/log.h"
#include "base/trajectory.h"

namespace troupe {
namespace {

class DirectorState {
 public:
  using Pointer = director_actor::stateful_pointer<DirectorState>;
  static constexpr const char* name = "director";

  explicit DirectorState(Pointer self) : self_(self) {}

  director_actor::behavior_type start(buffer_actor buffer, evaluator_actor evaluator, supervisor_actor supervisor,
                                      DirectorSetup setup) {
    buffer_ = std::move(buffer);
    evaluator_ = std::move(evaluator);
    supervisor_ = std::move(supervisor);
    setup_ = std::move(setup);
    state_ = setup_.state;
    first_step_ = state_.step;
    num_given_up_ = state_.num_given_up;
    slots_.emplace(setup_.admission, state_.step);
    slots_->set_dropped(state_.dropped);
    setup_.recorder->set_pending_drops(state_.pending_drops);
    work_.emplace(setup_.work);
    caf::anon_send(buffer_, atom::arrive_v, caf::actor_cast<caf::strong_actor_ptr>(self_));
    restore();
    self_->set_down_handler([this](const caf::down_msg& down) { worker_down(down); });
    alone_since_ = now();
    self_->delayed_send(self_, look_interval(), atom::overdue_v);
    return {
        [this](atom::trained, const StepReport& report) { return trained(report); },
        [this](atom::decide) { return decide(); },
        [this](atom::validate, const std::string&) { return decide(); },
        [this](atom::interrupt) { interrupt(); },
        [this](atom::status) { return status(); },
        [this](atom::arrive, int32_t worker, int32_t credit, int64_t version, const caf::strong_actor_ptr& handle) {
          arrive(worker, credit, version, handle);
        },
        [this](atom::applied, int32_t worker, int64_t version) {
          const Busy busy(busy_);
          touch(worker);
          work_->acknowledge(worker, version);
          pump();
        },
        [this](atom::generated, const SampleReport& report) {
          const Busy busy(busy_);
          touch(report.worker);
          work_->generated(report.worker, report.sample_id, report.attempt);
          pump();
        },
        [this](atom::failed, const SampleReport& report) { failed(report); },
        [this](atom::finished, uint64_t sample_id) {
          const Busy busy(busy_);
          work_->finished(sample_id);
          num_failed_groups_ = 0;
        },
        [this](atom::dropped, const GroupDrop& drop) { dropped(drop); },
        [this](atom::batch, int64_t step, const std::string& summary) {
          const Busy busy(busy_);
          summaries_[step] = nlohmann::json::parse(summary);
        },
        [this](atom::progress, const WorkerStatus& status) {
          const Busy busy(busy_);
          touch(status.worker);
          if (const auto found = workers_.find(status.worker); found != workers_.end()) found->second.status = status;
          setup_.recorder->status(status);
        },
        [this](atom::leave, int32_t worker) {
          const Busy busy(busy_);
          if (workers_.contains(worker)) lose(worker, "it leaves", false);
          pump();
        },
        [this](atom::overdue) { look_for_overdue(); },
        [this](atom::overdue, const caf::strong_actor_ptr& reward, const std::string& why) {
          caf::anon_send(supervisor_, atom::overdue_v, std::string("reward"), int32_t{0}, reward, why);
        },
    };
  }

 private:
  struct Worker {
    rollout_actor handle;
    Question::Time heard;
    WorkerStatus status;
  };
  using Promise = caf::typed_response_promise<StepDecision>;

  /// Longest wait for words that only explain something else's time-out.
  static constexpr std::chrono::milliseconds kLastWords{2000};
  /// Longest wait of a checkpoint for what workers hold: an engine step, and some more.
  static constexpr std::chrono::milliseconds kSnapshotLimit{2000};

  Question::Time now() const { return self_->clock().now(); }
  std::string who() const { return concat("director, step ", state_.step + 1); }

  caf::result<std::string> status() {
    const Busy busy(busy_);
    auto promise = self_->template make_response_promise<std::string>();
    DirectorView view{who(),         *work_, *slots_, state_.step, setup_.num_steps, setup_.board->version(),
                      num_given_up_, {}};
    for (const auto& [seat, worker] : workers_)
      view.workers.push_back({seat, std::chrono::duration<double>(now() - worker.heard).count(), worker.status});
    auto status = describe(view);
    const Question question(*self_, who(), "the buffer", "status");
    self_->request(buffer_, std::min(setup_.limit, kLastWords), atom::status_v)
        .then(
            [this, promise, status](const std::string& answer) mutable {
              const Busy busy(busy_);
              promise.deliver(add_buffer(std::move(status), answer));
            },
            [this, promise, status, question](const caf::error& error) mutable {
              const Busy busy(busy_);
              promise.deliver(add_failure(std::move(status), question.failed(*self_, error)));
            });
    return promise;
  }

  void interrupt() {
    const Busy busy(busy_);
    interrupted_ = true;
    if (setup_.stop_evaluation) setup_.stop_evaluation();
    end_evaluation(false);
    caf::anon_send(buffer_, atom::interrupt_v);
  }

  // -- work ----------------------------------------------------------------------------------------------------------

  void restore() {
    for (const auto& admission : state_.live) {
      slots_->restore(admission);
      // The buffer's half of the checkpoint knows the group, be it without a single finished sample: announced again it
      // would be a second group. One that was admitted between the two halves is new to it.
      const auto known = setup_.finished.find(admission.group);
      const bool announce = known == setup_.finished.end();
      begin_group(admission, announce ? std::vector<uint64_t>() : known->second, announce);
    }
    slots_->set_next_index(std::max(slots_->next_index(), state_.next_index));
    std::erase_if(setup_.unfinished, [this](const auto& entry) {
      const auto group = group_of_sample(entry.first);
      const auto known = setup_.finished.find(group);
      return !slots_->is_live(group) ||
             (known != setup_.finished.end() &&
              std::find(known->second.begin(), known->second.end(), entry.first) != known->second.end());
    });
    setup_.finished.clear();
  }

  /// Fills free slots (only as many as the rest of the run needs) and sends out whatever can be sent.
  void pump() {
    if (held_ || interrupted_) return;
    while (slots_->num_free() > 0 &&
           slots_->num_live() < (setup_.num_steps - state_.step) * setup_.admission.num_groups_per_step)
      begin_group(slots_->admit(state_.next_prompt++), {}, true);
    for (auto& issue : work_->issue()) {
      const auto& prompt = prompts_.at(issue.group);
      const auto& handle = workers_.at(issue.worker).handle;
      if (work_->num_at(issue.worker) == static_cast<int64_t>(issue.sample_ids.size())) touch(issue.worker);
      auto so_far = take_so_far(issue.sample_ids);
      caf::anon_send(handle, atom::work_v,
                     WorkOrder{issue.group, issue.min_version, prompt.tokens, prompt.metadata_json,
                               std::move(issue.sample_ids), std::move(issue.attempts), std::move(so_far)});
    }
  }

  /// Once: where the worker that goes on with them falls too, they begin anew.
  std::vector<std::string> take_so_far(const std::vector<uint64_t>& sample_ids) {
    std::vector<std::string> so_far;
    if (setup_.unfinished.empty()) return so_far;
    for (const auto id : sample_ids) {
      const auto found = setup_.unfinished.extract(id);
      so_far.push_back(found.empty() ? std::string() : std::move(found.mapped()));
    }
    return so_far;
  }

  /// `announce`: the buffer has not heard of the group yet.
  void begin_group(const Admission& admission, const std::vector<uint64_t>& finished, bool announce) {
    const auto group = admission.group;
    if (announce)
      caf::anon_send(buffer_, atom::admit_v, GroupTicket{group, admission.index, setup_.num_samples_per_group});
    std::vector<uint64_t> missing;
    for (uint32_t k = 0; k < static_cast<uint32_t>(setup_.num_samples_per_group); ++k) {
      const auto id = make_sample_id(group, k);
      if (std::find(finished.begin(), finished.end(), id) == finished.end()) missing.push_back(id);
    }
    try {
      prompts_[group] = setup_.encode(group);
      work_->add_group(group, admission.index, admission.version, missing);
    } catch (const std::exception& error) {
      log::warning("director: prompt ", group, " cannot be used: ", error.what());
      for (const auto id : missing) caf::anon_send(buffer_, atom::give_up_v, uint64_t{id}, std::string(error.what()));
    }
  }

  void forget_group(uint64_t group) {
    work_->remove_group(group);
    prompts_.erase(group);
    setup_.unfinished.erase(setup_.unfinished.lower_bound(make_sample_id(group, 0)),
                            setup_.unfinished.lower_bound(make_sample_id(group + 1, 0)));
  }

  void failed(const SampleReport& report) {
    const Busy busy(busy_);
    touch(report.worker);
    work_->generated(report.worker, report.sample_id, report.attempt);
    work_->failed(report.sample_id, report.attempt, report.failure);
    give_up();
    pump();
  }

  void give_up() {
    for (const auto& given : work_->take_given_up()) {
      log::warning("director: sample ", given.sample_id, " is given up: ", given.reason);
      ++num_given_up_;
      caf::anon_send(buffer_, atom::give_up_v, uint64_t{given.sample_id}, given.reason);
    }
  }

  void dropped(const GroupDrop& drop) {
    const Busy busy(busy_);
    slots_->drop(drop.group, drop.reason);
    forget_group(drop.group);
    setup_.recorder->dropped(drop);
    if (drop.reason == "failed") look_at_failed(drop);
    pump();
  }

  /// Groups that fail at once (prompts that cannot be served) free their slots at once: without an end, a busy trainer
  /// would be waited for by thousands of them.
  void look_at_failed(const GroupDrop& drop) {
    if (++num_failed_groups_ != setup_.max_failed_groups || interrupted_) return;
    caf::anon_send(supervisor_, atom::failed_v,
                   concat(who(), ": ", num_failed_groups_, " groups in a row gave no sample; the last one, ",
                          drop.group, ": ", drop.given_up_reasons.empty() ? "" : drop.given_up_reasons.back()));
    interrupt();
  }

  // -- workers -------------------------------------------------------------------------------------------------------

  void arrive(int32_t worker, int32_t credit, int64_t version, const caf::strong_actor_ptr& handle) {
    const Busy busy(busy_);
    if (workers_.contains(worker)) lose(worker, "was replaced");
    workers_[worker] = {caf::actor_cast<rollout_actor>(handle), now(), {}};
    self_->monitor(workers_[worker].handle);
    work_->join(worker, credit, version);
    // Published between the worker's look at the board and now.
    if (setup_.board->version() > version)
      caf::anon_send<caf::message_priority::high>(workers_[worker].handle, atom::weights_v, setup_.board->version());
    pump();
  }

  void worker_down(const caf::down_msg& down) {
    const Busy busy(busy_);
    for (const auto& [worker, entry] : workers_) {
      if (entry.handle.address() == down.source) {
        lose(worker, describe_error(down.reason, self_->system()));
        break;
      }
    }
    pump();
  }

  void lose(int worker, const std::string& why, bool is_loss = true) {
    const auto num_lost = work_->leave(worker, is_loss);
    workers_.erase(worker);
    setup_.recorder->gone(worker);
    if (workers_.empty()) alone_since_ = now();
    if (num_lost > 0)
      log::write(is_loss ? log::Level::kWarning : log::Level::kInfo,
                 concat("director: rollout ", worker, " is gone (", why, "): ", num_lost, " samples are issued again"));
    give_up();
  }

  void touch(int worker) {
    const auto found = workers_.find(worker);
    if (found != workers_.end()) found->second.heard = now();
  }

  std::chrono::milliseconds look_interval() const {
    const auto limit =
        setup_.wait_for_workers.count() > 0 ? std::min(setup_.limit, setup_.wait_for_workers) : setup_.limit;
    return std::max(limit / 4, std::chrono::milliseconds(20));
  }

  /// Only where others may join: the run's own workers are the supervisor's concern.
  void look_for_anybody() {
    if (setup_.wait_for_workers.count() == 0 || !workers_.empty() || !started_ || held_ || interrupted_) return;
    const auto alone = std::chrono::duration<double>(now() - alone_since_).count();
    if (now() - alone_since_ <= setup_.wait_for_workers) return;
    caf::anon_send(supervisor_, atom::failed_v,
                   concat(who(), ": no rollout worker is here, and none has joined for ", alone,
                          " s (cluster.wait_for_workers_s): ", work_->num_waiting(), " samples wait"));
    interrupt();
  }

  void look_for_overdue() {
    const Busy busy(busy_);
    std::vector<int> overdue;
    for (const auto& [worker, entry] : workers_)
      if (work_->num_at(worker) > 0 && now() - entry.heard > setup_.limit) overdue.push_back(worker);
    for (const auto worker : overdue) {
      const auto why = concat("holds ", work_->num_at(worker), " samples and was not heard of for ",
                              setup_.limit.count() / 1000, " s at step ", state_.step + 1);
      caf::anon_send(supervisor_, atom::overdue_v, std::string("rollout"), int32_t{worker},
                     caf::actor_cast<caf::strong_actor_ptr>(workers_.at(worker).handle), why);
      lose(worker, why);  // its work goes to others now: it may never die, and may never be replaced
    }
    if (!overdue.empty()) pump();
    look_for_anybody();
    self_->delayed_send(self_, look_interval(), atom::overdue_v);
  }

  // -- the run -------------------------------------------------------------------------------------------------------

  void announce_weights() {
    for (const auto& [worker, entry] : workers_)
      caf::anon_send<caf::message_priority::high>(entry.handle, atom::weights_v, int64_t{setup_.board->version()});
  }

  caf::result<StepDecision> decide() {
    const Busy busy(busy_);
    auto promise = self_->template make_response_promise<StepDecision>();
    const bool first = !started_;
    started_ = true;
    alone_since_ = now();
    announce_weights();  // the first version was published after the workers had looked for it
    if (first && !interrupted_ && is_evaluation_due() && state_.evaluated_step < state_.step) {
      held_ = true;  // the whole machine for the evaluation, then the first prompts
      evaluate([this, promise](bool best) mutable {
        held_ = false;
        alone_since_ = now();
        pump();
        answer(promise, best, state_.step >= setup_.num_steps && setup_.save_at_end);
      });
    } else {
      pump();
      answer(promise, false, false);
    }
    return promise;
  }

  caf::result<StepDecision> trained(const StepReport& report) {
    const Busy busy(busy_);
    auto promise = self_->template make_response_promise<StepDecision>();
    slots_->train(report.groups, report.version);
    for (const auto group : report.groups) forget_group(group);
    state_.step = report.step;
    announce_weights();
    record(report);
    pump();
    const bool last = state_.step >= setup_.num_steps;
    const bool due = is_evaluation_due() && !interrupted_;
    const bool save = (setup_.save_interval > 0 && state_.step % setup_.save_interval == 0) ||
                      ((last || interrupted_) && setup_.save_at_end);
    if (due)
      evaluate([this, promise, save](bool best) mutable { answer(promise, best, save); });
    else
      answer(promise, false, save);
    return promise;
  }

  void record(const StepReport& report) {
    auto metrics = nlohmann::json::parse(report.metrics_json);
    auto summary = std::move(summaries_[report.step]);
    summaries_.erase(report.step);
    if (summary.is_object()) metrics.update(summary["metrics"]);
    metrics["rollout_buffer/available_active_slots"] = slots_->num_free();
    metrics["rollout_buffer/active_slots_in_use"] = slots_->num_live();
    metrics["rollout/num_reissued"] = work_->num_reissued();
    metrics["rollout/num_failures"] = work_->num_failures();
    metrics["rollout/num_given_up"] = num_given_up_;
    metrics["rollout/oldest_version"] = work_->oldest_acknowledged();
    metrics["messages/num_stray_errors"] = num_stray_errors();
    metrics["messages/num_failed_questions"] = num_failed_questions();
    for (const auto& [reason, count] : slots_->dropped()) metrics["rollout_buffer/dropped/" + reason] = count;
    metrics["timing/weight_sync/most_snapshots"] = setup_.board->most_alive();
    metrics["timing/director(s)"] = busy_.take_s();
    setup_.recorder->step(report.step, std::move(metrics), summary.is_object() ? summary["journal"] : nlohmann::json(),
                          summary.is_object() ? summary["samples"] : nlohmann::json::array());
  }

  /// At the start, at the end, and every interval between.
  bool is_evaluation_due() const {
    return setup_.evaluate && (state_.step == 0 || state_.step >= setup_.num_steps ||
                               (setup_.evaluation_interval > 0 && state_.step % setup_.evaluation_interval == 0));
  }

  /// `next` is called once: by the evaluator's answer, its failure, or the user's interrupt.
  void evaluate(std::function<void(bool best)> next) {
    after_evaluation_ = std::move(next);
    const Question question(*self_, who(), "the evaluator", "evaluate");
    self_->request(evaluator_, setup_.limit, atom::evaluate_v, int64_t{state_.step})
        .then([this](const std::string& json) { evaluated(nlohmann::json::parse(json)); },
              [this, question](const caf::error& error) {
                const Busy busy(busy_);
                if (after_evaluation_) question.failed(*self_, error);
                end_evaluation(false);
              });
  }

  void evaluated(nlohmann::json metrics) {
    const Busy busy(busy_);
    if (!after_evaluation_) return;
    state_.evaluated_step = state_.step;
    const double score = metrics.value("evaluation/score", 0.0);
    const bool is_better = !state_.has_best_score || score > state_.best_score;
    if (is_better) {
      state_.best_score = score;
      state_.has_best_score = true;
    }
    setup_.recorder->evaluation(state_.step, std::move(metrics));
    end_evaluation(is_better && setup_.keep_best && state_.step > 0);
  }

  void end_evaluation(bool best) {
    if (auto next = std::exchange(after_evaluation_, {})) next(best);
  }

  /// Answers the trainer; a save first asks the buffer for its half of the state.
  void answer(Promise promise, bool best, bool save) {
    StepDecision decision;
    decision.export_best = best;
    decision.interrupted = interrupted_;
    decision.stop = interrupted_ || state_.step >= setup_.num_steps;
    decision.train = !decision.stop;
    // An interrupt may come at any time before this; nothing new since the checkpoint that was resumed is not saved.
    save = save || (interrupted_ && state_.step > first_step_);
    if (!save || (setup_.save_interval == 0 && !setup_.save_at_end)) {
      promise.deliver(decision);
      return;
    }
    // Workers first: what they finish meanwhile is in the buffer then, and what stands in both is done.
    ask_unfinished([this, promise, decision](UnfinishedSamples unfinished) mutable {
      add_snapshot(promise, decision, std::move(unfinished));
    });
  }

  /// Whoever does not answer in time has nothing to add: its samples begin anew in a resumed run.
  void ask_unfinished(std::function<void(UnfinishedSamples)> next) {
    // Not given out again yet: as they were in the checkpoint that was resumed.
    auto gather = std::make_shared<UnfinishedGather>(setup_.unfinished, std::move(next));
    if (work_->num_outstanding() > 0) {
      for (const auto& [worker, entry] : workers_) {
        gather->one_more();
        const Question question(*self_, who(), concat("rollout ", worker), "unfinished samples for a checkpoint");
        self_
            ->request<caf::message_priority::high>(entry.handle, std::min(setup_.limit, kSnapshotLimit),
                                                   atom::snapshot_v)
            .then(
                [this, worker = worker, gather](const Packed& packed) {
                  const Busy busy(busy_);
                  gather->add(concat("rollout ", worker), packed.bytes);
                },
                [this, gather, question](const caf::error& error) {
                  const Busy busy(busy_);
                  question.failed(*self_, error);
                  gather->one_less();
                });
      }
    }
    gather->one_less();
  }

  void add_snapshot(Promise promise, StepDecision decision, UnfinishedSamples unfinished) {
    const Question question(*self_, who(), "the buffer", "snapshot for a checkpoint");
    self_->request(buffer_, setup_.limit, atom::snapshot_v)
        .then(
            [this, promise, decision, unfinished = std::move(unfinished)](const Packed& groups) mutable {
              const Busy busy(busy_);
              setup_.recorder->sync();
              state_.live = slots_->in_order();
              state_.next_index = slots_->next_index();
              state_.dropped = slots_->dropped();
              state_.num_given_up = num_given_up_;
              state_.pending_drops = setup_.recorder->pending_drops();
              state_.time_s = setup_.recorder->time_s();
              decision.save = true;
              decision.state_json = to_json(state_).dump();
              decision.groups.bytes = join_groups(groups.bytes, unfinished);
              promise.deliver(decision);
            },
            [this, promise, question](const caf::error& error) mutable {
              promise.deliver(caf::make_error(ec::failed, question.failed(*self_, error)));
            });
  }

  Pointer self_;
  buffer_actor buffer_;
  evaluator_actor evaluator_;
  supervisor_actor supervisor_;
  DirectorSetup setup_;
  RunState state_;
  int64_t first_step_ = 0;
  std::optional<AdmissionLedger> slots_;
  std::optional<WorkLedger> work_;
  std::map<uint64_t, EncodedPrompt> prompts_;
  std::map<int, Worker> workers_;
  Question::Time alone_since_{};  // without a worker
  std::map<int64_t, nlohmann::json> summaries_;
  std::function<void(bool best)> after_evaluation_;  // set while one is under way
  bool started_ = false, held_ = false, interrupted_ = false;
  int64_t num_given_up_ = 0;
  BusyTime busy_;
  int64_t num_failed_groups_ = 0;  // since a sample was finished
};

}  // namespace

director_actor spawn_director(caf::actor_system& system, buffer_actor buffer, evaluator_actor evaluator,
                              supervisor_actor supervisor, DirectorSetup setup) {
  return spawn_state<director_actor, DirectorState>(system, std::move(buffer), std::move(evaluator),
                                                    std::move(supervisor), std::move(setup));
}

}  // namespace troupe
