// Trains again on the batches that a run recorded: the trainer and its batches alone, no worker and no reward. With the
// ranks and threads of the run the weights are the run's, bit for bit.
#include "actors/batch_store.h"
#include "actors/rl_models.h"
#include "actors/run_setup.h"
#include "base/cpu.h"
#include "base/error.h"

namespace troupe {

int run_replay(const RlTopology& topology, const std::string& recorded, int64_t until_step) {
  const auto last = last_recorded_step(recorded);
  if (last == 0)
    throw UsageError(concat(recorded, ": holds no batches/step-1.bin: a replay needs a run with run.record_batches"));
  if (until_step <= 0) until_step = last;
  if (until_step > last)
    throw UsageError(concat(recorded, ": recorded ", last, " steps, fewer than --until-step ", until_step));
  const int threads = topology.threads > 0 ? topology.threads : num_usable_cores();
  const auto observer = std::make_shared<ObserverGate>(topology.observer);
  const auto trace = std::make_shared<Trace>(false);
  const auto models = open_models(topology);
  const auto folder = open_run_folder(topology.run, topology.checkpoint, -1);
  const auto recorder = std::make_shared<RunRecorder>(folder, trace, observer, topology.run.seed);
  const auto limit = milliseconds_of(topology.limits.request_timeout_s);
  auto shard = policy_shard_setup(topology, models, threads, limit, observer);
  shard.initial_weights = find_initial_weights(topology.checkpoint);

  CastList cast;
  cast.restarts = restart_options(topology.limits);
  cast.observer = observer;
  DataSetup feed;
  feed.feed.fill = [recorded](TrainBatch& batch) { batch = read_batch(recorded, batch.step); };
  feed.feed.cursor = [] { return TextCursor(); };
  feed.num_steps = until_step;
  feed.recorder = recorder;
  auto trainer = trainer_setup(topology.mesh, shard, trace, observer, limit);
  trainer.start_critic = start_critic(topology, models, shard, trace);
  cast_data_and_trainer(cast, std::move(feed), std::move(trainer));
  const auto code = play(std::move(cast), play_options(topology.limits, topology.handle_signals));
  recorder->sync();
  return code;
}

}  // namespace troupe
