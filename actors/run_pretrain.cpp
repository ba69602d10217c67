// Builds the cast of a pre-training run (supervisor, trainer with its shards, data) and plays it.
#include "actors/data_feed.h"
#include "actors/learner_shard.h"
#include "actors/run_setup.h"
#include "actors/trainer.h"
#include "base/cpu.h"
#include "base/error.h"

namespace troupe {
namespace {

TextSourceOptions text_options(const PretrainTopology& topology, const ModelSource& model, bool validation) {
  TextSourceOptions options;
  const auto& data = topology.data;
  options.kind = data.kind;
  options.text_field = data.text_field;
  options.seed = data.seed;
  options.shuffle = data.shuffle;
  options.num_tokens_per_row = topology.sequence_length;
  options.bos_token_id = static_cast<int32_t>(model.config().bos_token_id);
  if (!model.config().eos_token_ids.empty())
    options.eos_token_id = static_cast<int32_t>(model.config().eos_token_ids.front());
  const bool own_files = !data.validation_paths.empty();
  options.paths = validation && own_files ? data.validation_paths : data.paths;
  options.split = own_files || data.validation_fraction <= 0 ? "all" : validation ? "validation" : "train";
  options.validation_fraction = data.validation_fraction;
  return options;
}

}  // namespace

int run_pretrain(const PretrainTopology& topology) {
  const int threads = topology.threads > 0 ? topology.threads : num_usable_cores();
  const auto rows = topology.num_tokens_per_train_step / topology.sequence_length;
  if (rows < topology.num_ranks)
    throw UsageError(concat("training.num_tokens_per_train_step = ", topology.num_tokens_per_train_step, " gives ",
                            rows, " rows of ", topology.sequence_length, " tokens for ", topology.num_ranks,
                            " ranks: at least one each is needed"));
  const auto observer = std::make_shared<ObserverGate>(topology.observer);
  const auto trace = std::make_shared<Trace>(topology.metrics.enable_trace);
  const auto model = std::make_shared<const ModelSource>(topology.model, topology.run.seed);
  model->check_weights();
  require(model->tokenizer() != nullptr, topology.model.path, ": no tokenizer, which text needs");
  const auto source = std::make_shared<TextSource>(text_options(topology, *model, false), *model->tokenizer());
  const auto resumed = find_resume(topology.checkpoint, topology.run.folder);
  int64_t first_step = 0;
  double time_s = 0;
  if (resumed) {
    first_step = resumed->state.at("step");
    time_s = resumed->state.value("time_s", 0.0);
    source->seek(resumed->state.at("cursor").get<TextCursor>());
  }
  const auto folder = open_run_folder(topology.run, resumed ? first_step : -1);
  if (resumed) observer->say(concat("resuming after step ", first_step, " from ", resumed->path.string()));
  const auto recorder = std::make_shared<RunRecorder>(folder, trace, observer, topology.run.seed);
  recorder->set_time_before(time_s);

  LocalBatch validation;
  const bool has_validation = topology.num_validation_tokens > 0 &&
                              (!topology.data.validation_paths.empty() || topology.data.validation_fraction > 0);
  if (has_validation) {
    const TextSource held_out(text_options(topology, *model, true), *model->tokenizer());
    auto made = std::make_shared<TrainBatch>();
    made->rows_by_rank.resize(static_cast<size_t>(topology.num_ranks));
    auto all = held_out.one_pass(topology.num_validation_tokens);
    for (size_t i = 0; i < all.size(); ++i)
      made->rows_by_rank[i % made->rows_by_rank.size()].push_back(std::move(all[i]));
    validation.batch = std::move(made);
  }
  const auto limit = milliseconds_of(topology.limits.request_timeout_s);
  auto shard = shard_setup(topology.learner, topology.run, topology.checkpoint, topology.num_ranks,
                           topology.num_replicas, threads, limit);
  shard.model = model;
  shard.observer = observer;
  if (resumed) shard.resume_from = resumed->path;

  CastList cast;
  cast.restarts = restart_options(topology.limits);
  cast.observer = observer;
  cast.start_data = [=](caf::actor_system& system) {
    DataSetup setup;
    setup.source = source;
    setup.num_ranks = topology.num_ranks;
    setup.num_rows_per_step = rows;
    setup.first_step = first_step;
    setup.num_steps = topology.run.steps;
    setup.save_interval = topology.checkpoint.enable ? topology.checkpoint.interval : 0;
    setup.save_at_end = topology.checkpoint.enable;
    setup.validation_interval = topology.validation_interval;
    setup.validate = has_validation;
    setup.recorder = recorder;
    const auto data = spawn_data(system, std::move(setup));
    return std::pair<batch_source_actor, run_control_actor>(data, data);
  };
  cast.start_trainer = [=](caf::actor_system& system, batch_source_actor batches, run_control_actor control,
                           supervisor_actor supervisor) {
    TrainerSetup setup;
    setup.num_ranks = topology.num_ranks;
    setup.make_work = [shard](int rank) { return make_learner_shard(rank, shard); };
    setup.trace = trace;
    setup.observer = observer;
    setup.first_step = first_step;
    setup.write_model = topology.checkpoint.last_save_in_hf;
    setup.validation = validation;
    setup.limit = limit;
    return spawn_trainer(system, std::move(batches), std::move(control), std::move(supervisor), std::move(setup));
  };
  const auto code = play(std::move(cast), play_options(topology.limits, topology.handle_signals));
  recorder->sync();
  if (topology.metrics.enable_trace) trace->write(std::filesystem::path(topology.run.folder) / "trace.json");
  return code;
}

nlohmann::json describe(const PretrainTopology& topology) {
  const ModelSource model(topology.model, topology.run.seed);
  return {{"roles", {{"data", 1}, {"trainer", 1}, {"shard", topology.num_ranks}, {"supervisor", 1}}},
          {"parameters", model.config().num_parameters()},
          {"memory_bytes",
           describe_memory(model.config(), topology.num_ranks, topology.num_replicas, topology.checkpoint)}};
}

}  // namespace troupe
