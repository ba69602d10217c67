// An RL run on virtual time: settings, hooks for everything that may go wrong, the outcome. See support.h.
#pragma once

#include "actors/evaluator.h"
#include "tests/actors/support.h"

namespace troupe::actor_tests {

using timed_reward_actor = reward_actor::extend<caf::reacts_to<atom::next, uint64_t>>;
using timed_shard_actor = shard_actor::extend<caf::reacts_to<atom::next>>;

/// A worker that needs a stated time for each sample, all of its samples side by side.
struct TimedRollout {
  int worker = 0, credit = 1;
  director_actor director;
  reward_actor reward;
  std::shared_ptr<WeightBoard> board;
  std::function<Milliseconds(uint64_t sample_id)> time;
  Milliseconds weight_delay{0};
};

inline rollout_actor::behavior_type timed_rollout(rollout_actor::pointer self, TimedRollout setup) {
  struct Sample {
    uint32_t attempt;
    int64_t version;
  };
  struct State {
    TimedRollout setup;
    int64_t version, announced;
    std::map<uint64_t, Sample> samples;
  };
  auto state = std::make_shared<State>(State{setup, setup.board->version(), -1, {}});
  caf::anon_send(setup.director, atom::arrive_v, int32_t{setup.worker}, int32_t{setup.credit}, int64_t{state->version},
                 caf::actor_cast<caf::strong_actor_ptr>(self));
  return {
      [self, state](atom::work, const WorkOrder& order) {
        CHECK(state->version >= order.min_version);
        for (size_t i = 0; i < order.sample_ids.size(); ++i) {
          state->samples[order.sample_ids[i]] = {order.attempts[i], state->version};
          self->delayed_send(self, state->setup.time(order.sample_ids[i]), atom::score_v, order.sample_ids[i]);
        }
      },
      [self, state](atom::weights, int64_t version) {
        if (version > state->announced && state->setup.weight_delay.count() > 0) {
          state->announced = version;
          self->delayed_send(self, state->setup.weight_delay, atom::weights_v, version);
          return;
        }
        state->version = std::max(state->version, version);
        caf::anon_send(state->setup.director, atom::applied_v, int32_t{state->setup.worker}, int64_t{state->version});
      },
      [state](atom::arrive, const caf::strong_actor_ptr& reward) {
        state->setup.reward = caf::actor_cast<reward_actor>(reward);
      },
      [](atom::snapshot) { return Packed{}; },
      [](atom::next) {},
      [self, state](atom::score, uint64_t id) {
        const auto sample = state->samples.at(id);
        state->samples.erase(id);
        caf::anon_send(state->setup.director, atom::generated_v,
                       SampleReport{state->setup.worker, id, sample.attempt, {}});
        self->request(state->setup.reward, caf::infinite, atom::score_v,
                      pack(make_trajectory(id, sample.attempt, sample.version)))
            .then([](int32_t) {}, [](const caf::error&) {});
      },
  };
}

inline timed_reward_actor::behavior_type timed_reward(timed_reward_actor::pointer self, sample_store_actor buffer,
                                                      ScoreFunction score, std::function<Milliseconds(uint64_t)> time) {
  struct State {
    uint64_t next = 0;
    std::map<uint64_t, std::pair<caf::typed_response_promise<int32_t>, Packed>> under_way;
  };
  auto state = std::make_shared<State>();
  return {
      [=](atom::score, const Packed& packed) -> caf::result<int32_t> {
        auto trajectory = unpack(packed);
        score(trajectory);
        auto promise = self->make_response_promise<int32_t>();
        state->under_way[state->next] = {promise, pack(trajectory)};
        self->delayed_send(self, time(trajectory.sample_id), atom::next_v, uint64_t{state->next++});
        return promise;
      },
      [=](atom::next, uint64_t number) {
        auto [promise, packed] = state->under_way.at(number);
        state->under_way.erase(number);
        self->request(buffer, caf::infinite, atom::store_v, packed)
            .then([promise = promise](int32_t result) mutable { promise.deliver(result); },
                  [promise = promise](const caf::error& error) mutable { promise.deliver(error); });
      },
  };
}

/// `time` below 0: no answer, ever.
inline timed_shard_actor::behavior_type timed_shard(timed_shard_actor::pointer self, std::shared_ptr<ShardWork> work,
                                                    std::function<Milliseconds(int64_t step)> time) {
  auto promise = std::make_shared<caf::typed_response_promise<std::string>>();
  return {
      [=](atom::load) { return work->load().dump(); },
      [=](atom::train, const LocalBatch& local) -> caf::result<std::string> {
        work->train(*local.batch);
        *promise = self->make_response_promise<std::string>();
        const auto needed = time(local.batch->step);
        if (needed.count() >= 0) self->delayed_send(self, needed, atom::next_v);
        return *promise;
      },
      [=](atom::validate, const LocalBatch& local) { return work->validate(*local.batch).dump(); },
      [=](atom::judge, const LocalBatch& local) {
        return LocalNumbers{std::make_shared<const TokenNumbers>(work->judge(*local.batch))};
      },
      [=](atom::weights, int64_t version) { return work->publish(version).dump(); },
      [=](atom::save, int64_t step, const StepDecision& decision) { return work->save(step, decision).dump(); },
      [=](atom::write, const std::string& folder) { return work->write_model(folder).dump(); },
      [=](atom::next) { promise->deliver(std::string(R"({"loss/mean":0.5})")); },
  };
}

struct VirtualRun {
  VirtualRun() = default;
  ~VirtualRun() {  // handles must not outlive the system
    rollouts.clear();
    reward = reward_actor();
    buffer = buffer_actor();
    director = director_actor();
    trainer = trainer_actor();
    supervisor = supervisor_actor();
  }
  // Settings
  AdmissionOptions admission{1, 0, 1};
  int64_t num_samples = 2, num_steps = 4;
  int num_workers = 2, credit = 4, num_ranks = 1, max_attempts = 3;
  ZeroVariance zero_variance = ZeroVariance::kKeep;
  RestartOptions restarts;
  Milliseconds limit{600'000}, score_limit{20'000};
  int64_t save_interval = 0, evaluation_interval = 0;
  bool save_at_end = false, evaluate = false, needs_every_rollout = false;
  RunState state;
  std::string saved_groups;
  UnfinishedSamples unfinished;
  bool fresh_folder = true;
  // What the roles do; a time that is set puts an actor that needs it in the place of the real one.
  std::function<EncodedPrompt(uint64_t)> encode = [](uint64_t) { return EncodedPrompt{{1, 2}, "{}"}; };
  std::function<FakeWork::Hooks(int worker)> work = [](int) { return FakeWork::Hooks{}; };
  std::function<std::unique_ptr<RolloutWork>(int worker)> work_of;  // in its place
  ScoreFunction score = [](Trajectory& t) { t.total_reward = double(t.sample_id % kSamplesPerGroupLimit); };
  FakeShardHooks shard;
  EvaluateFunction evaluation;
  std::function<sample_store_actor(caf::actor_system&, sample_store_actor, supervisor_actor)>
      start_reference;                                           // empty: none
  std::function<critic_actor(caf::actor_system&)> start_critic;  // empty: no critic
  std::function<Milliseconds(uint64_t sample_id)> rollout_time, reward_time;
  std::function<Milliseconds(int rank, int64_t step)> train_time;
  std::function<Milliseconds(int worker)> weight_delay = [](int) { return Milliseconds(0); };
  std::function<std::unique_ptr<ShardWork>(int rank)> make_work;
  std::function<buffer_actor(caf::actor_system&)> start_buffer;  // these replace the actor
  std::function<evaluator_actor(caf::actor_system&)> start_evaluator;
  std::function<reward_actor(caf::actor_system&, sample_store_actor)> start_reward;
  std::function<rollout_actor(caf::actor_system&, int, director_actor, reward_actor)> start_rollout;
  std::function<gate_actor(caf::actor_system&)> start_gate;  // none where empty
  // Outcome
  int code = -1;
  std::string cause;
  bool is_over = false;
  int64_t num_steps_trained = 0, worst_lag = 0;
  std::map<uint64_t, int> times_trained;  // by sample
  std::vector<std::vector<uint64_t>> batches;
  std::vector<Milliseconds> step_times;
  std::string saved_state, newest_groups;  // of the newest checkpoint
  std::vector<int64_t> saved_steps;
  std::map<int, int> num_starts;  // of rollout workers
  int num_reward_starts = 0;
  std::vector<rollout_actor> rollouts;
  reward_actor reward;
  buffer_actor buffer;
  director_actor director;
  trainer_actor trainer;
  supervisor_actor supervisor;

  TemporaryFolder folder{concat("virtual_run_", num_made++)};
  static inline int num_made = 0;
  std::shared_ptr<Trace> trace = std::make_shared<Trace>(false);
  std::shared_ptr<ObserverGate> observer = std::make_shared<ObserverGate>(nullptr);
  std::shared_ptr<WeightBoard> board;
  std::shared_ptr<RunRecorder> recorder;
  VirtualStage stage;

  GroupBufferOptions buffer_options() const {
    return {admission.num_groups_per_step, admission.window, zero_variance, 4};
  }
  std::vector<uint64_t> live_groups() const {
    std::vector<uint64_t> live;
    for (const auto& one : state.live) live.push_back(one.group);
    return live;
  }
  /// Where another run's newest checkpoint stands.
  void resume(const VirtualRun& before) {
    state = parse_run_state(nlohmann::json::parse(before.saved_state));
    std::tie(saved_groups, unfinished) = split_groups(before.newest_groups);
    std::filesystem::copy(before.folder.path, folder.path,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    fresh_folder = false;
    saved_state = before.saved_state;  // the newest checkpoint until this run writes its own
    newest_groups = before.newest_groups;
  }

  void start() {
    recorder = std::make_shared<RunRecorder>(std::make_shared<RunFolder>(folder.path, fresh_folder ? -1 : state.step),
                                             trace, observer, 1);
    board = std::make_shared<WeightBoard>(num_workers + 1);
    supervisor = stage.add(spawn_supervisor(stage.system, make_cast()));
    auto client = stage.system.spawn([this](caf::event_based_actor* self) {
      self->request(supervisor, caf::infinite, atom::ended_v)
          .then(
              [this](int32_t run_code, const std::string& run_cause) {
                code = run_code;
                cause = run_cause;
                is_over = true;
              },
              [this](const caf::error& error) {
                cause = "supervisor: " + describe_error(error, stage.system);
                is_over = true;
              });
    });
    stage.add(client);
  }
  /// Until the run has ended; false where it has not by `end`.
  bool play(Milliseconds end = std::chrono::hours(100)) {
    if (!supervisor) start();
    return stage.run_until([this] { return is_over; }, end);
  }
  std::vector<nlohmann::json> metrics() const { return read_json_lines(folder.path / "metrics.jsonl"); }
  /// So many steps were trained, and each of their samples once.
  void check_each_trained_once(int64_t steps) const {
    CHECK(num_steps_trained == steps);
    CHECK(static_cast<int64_t>(times_trained.size()) == steps * admission.num_groups_per_step * num_samples);
    for (const auto& [sample, times] : times_trained) CHECK(times == 1);
  }
  std::map<uint64_t, std::string> fates() const { return read_fates(folder.path / "journal.jsonl"); }

 private:
  CastList make_cast() {
    CastList cast;
    cast.num_rollouts = num_workers;
    cast.restarts = restarts;
    cast.needs_every_rollout = needs_every_rollout;
    cast.observer = observer;
    cast.start_buffer = [this](caf::actor_system& system) {
      buffer = stage.add(start_buffer ? start_buffer(system)
                                      : spawn_buffer(system, {buffer_options(), {}, saved_groups, live_groups()}));
      return buffer;
    };
    if (evaluate)
      cast.start_evaluator = [this](caf::actor_system& system) {
        return stage.add(start_evaluator ? start_evaluator(system) : spawn_evaluator(system, evaluation, false));
      };
    cast.start_director = [this](caf::actor_system& system, buffer_actor to, evaluator_actor evaluator,
                                 supervisor_actor above) {
      DirectorSetup setup;
      setup.admission = admission;
      setup.work = {GroupToWorker::kLeastLoaded, num_workers, max_attempts};
      setup.num_samples_per_group = num_samples;
      setup.num_steps = num_steps;
      setup.save_interval = save_interval;
      setup.save_at_end = save_at_end;
      setup.evaluate = evaluate;
      setup.evaluation_interval = evaluation_interval;
      setup.keep_best = true;
      setup.state = state;
      setup.finished = finished_samples(buffer_options(), saved_groups, live_groups(), num_samples);
      setup.unfinished = unfinished;
      setup.encode = encode;
      setup.board = board;
      setup.recorder = recorder;
      setup.observer = observer;
      setup.limit = limit;
      director = stage.add(spawn_director(system, std::move(to), std::move(evaluator), std::move(above), setup));
      return director;
    };
    cast.start_reference = start_reference;
    cast.start_reward = [this](caf::actor_system& system, sample_store_actor to, const supervisor_actor&) {
      ++num_reward_starts;
      if (start_reward)
        reward = start_reward(system, to);
      else if (reward_time)
        reward = system.spawn(timed_reward, to, score, reward_time);
      else
        reward = spawn_reward(system, to, {[this] { return score; }, trace, false});
      return stage.add(reward);
    };
    if (start_gate)
      cast.start_gate = [this](caf::actor_system& system, const director_actor&, const reward_actor&) {
        return stage.add(start_gate(system));
      };
    cast.start_rollout = [this](caf::actor_system& system, int worker, director_actor to, reward_actor from) {
      ++num_starts[worker];
      rollout_actor made;
      if (start_rollout) {
        made = start_rollout(system, worker, to, from);
      } else if (rollout_time) {
        made = system.spawn(timed_rollout,
                            TimedRollout{worker, credit, to, from, board, rollout_time, weight_delay(worker)});
      } else {
        RolloutSetup setup;
        setup.make_work = [this](int seat) -> std::unique_ptr<RolloutWork> {
          return work_of ? work_of(seat) : std::make_unique<FakeWork>(work(seat));
        };
        setup.board = board;
        setup.trace = trace;
        setup.credit = credit;
        setup.score_limit = score_limit;
        setup.detached = false;
        made = spawn_rollout(system, worker, to, from, setup);
      }
      rollouts.push_back(made);
      return stage.add(made);
    };
    cast.start_trainer = [this](caf::actor_system& system, batch_source_actor source, run_control_actor control,
                                supervisor_actor above) {
      TrainerSetup setup;
      setup.shards.num_ranks = num_ranks;
      setup.shards.trace = trace;
      setup.observer = observer;
      setup.first_step = state.step;
      setup.limit = limit;
      setup.start_critic = start_critic;
      setup.shards.limit = limit;
      setup.shards.detached = false;
      setup.shards.make_work = [this](int rank) -> std::unique_ptr<ShardWork> {
        return make_work ? make_work(rank) : std::make_unique<FakeShard>(rank, board, shard_hooks());
      };
      if (train_time)
        setup.shards.start_shard = [this](caf::actor_system& host, int rank) {
          return shard_actor(
              stage.add(host.spawn(timed_shard, std::shared_ptr<ShardWork>(new FakeShard(rank, board, shard_hooks())),
                                   [this, rank](int64_t step) { return train_time(rank, step); })));
        };
      trainer =
          stage.add(spawn_trainer(system, std::move(source), std::move(control), std::move(above), std::move(setup)));
      return trainer;
    };
    return cast;
  }

  FakeShardHooks shard_hooks() {
    auto hooks = shard;
    hooks.on_train = [this](int rank, const TrainBatch& batch) {
      if (shard.on_train) shard.on_train(rank, batch);
      if (rank != 0) return;
      ++num_steps_trained;
      step_times.push_back(stage.now());
      batches.push_back(batch.groups);
      for (const auto& sample : batch.trajectories) {
        ++times_trained[sample.sample_id];
        worst_lag = std::max(worst_lag, batch.step - 1 - sample.oldest_version());
      }
    };
    hooks.on_save = [this](int rank, int64_t step, const StepDecision& decision) {
      if (shard.on_save) shard.on_save(rank, step, decision);
      if (rank != 0) return;
      saved_steps.push_back(step);
      saved_state = decision.state_json;
      newest_groups = decision.groups.bytes;
    };
    return hooks;
  }
};

}  // namespace troupe::actor_tests
