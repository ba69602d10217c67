// Builds the cast of a run of the trainer alone (supervisor, trainer with its shards, data) and plays it: pre-training,
// supervised fine-tuning, reward models, DPO.
#include "actors/learner_shard.h"
#include "actors/run_setup.h"
#include "base/cpu.h"
#include "base/error.h"

namespace troupe {
namespace {

/// What every source of this run has in common; validation: files of its own, or a share of the training files.
DataFileOptions file_options(const TextDataOptions& data, bool validation) {
  const bool own_files = !data.validation_paths.empty();
  DataFileOptions options;
  options.paths = validation && own_files ? data.validation_paths : data.paths;
  if (!own_files && data.validation_fraction > 0) options.split = validation ? "validation" : "train";
  options.validation_fraction = data.validation_fraction;
  options.seed = data.seed;
  options.shuffle = data.shuffle;
  options.skip_bad_lines = data.skip_bad_lines;
  return options;
}

int32_t eos_token_id(const ModelSource& model) {
  const auto& ids = model.config().eos_token_ids;
  return ids.empty() ? -1 : static_cast<int32_t>(ids.front());
}

TextSourceOptions text_options(const PretrainTopology& topology, const ModelSource& model, bool validation) {
  const auto& data = topology.data;
  TextSourceOptions options;
  static_cast<DataFileOptions&>(options) = file_options(data, validation);
  options.kind = topology.objective == TrainObjective::kChat ? "chat" : data.kind;
  options.text_field = data.text_field;
  options.num_tokens_per_row = topology.sequence_length;
  options.bos_token_id = static_cast<int32_t>(model.config().bos_token_id);
  options.eos_token_id = eos_token_id(model);
  return options;
}

PreferenceSourceOptions pair_options(const PretrainTopology& topology, bool validation) {
  const auto& data = topology.data;
  PreferenceSourceOptions options;
  static_cast<DataFileOptions&>(options) = file_options(data, validation);
  options.chosen_field = data.chosen_field;
  options.rejected_field = data.rejected_field;
  options.margin_field = data.margin_field;
  options.max_tokens = topology.sequence_length;
  return options;
}

void deal(std::vector<LanguageModelBatch> rows, int num_ranks, TrainBatch& batch) {
  batch.rows_by_rank.resize(static_cast<size_t>(num_ranks));
  for (size_t i = 0; i < rows.size(); ++i)
    batch.rows_by_rank[i % batch.rows_by_rank.size()].push_back(std::move(rows[i]));
}

/// The run's data: a feed of batches, the batch of the validation, and all pairs that a reference is asked about.
struct RunData {
  BatchFeed feed;
  std::function<void(const TextCursor&)> seek;
  LocalBatch validation;  // null: none
  std::shared_ptr<const std::vector<PreferencePair>> pairs;
};

RunData open_rows(const PretrainTopology& topology, const std::shared_ptr<const ModelSource>& model,
                  const std::shared_ptr<const ChatDocuments>& chats, bool has_validation) {
  const auto& tokenizer = *model->tokenizer();
  const auto source = std::make_shared<TextSource>(text_options(topology, *model, false), tokenizer, chats.get());
  const auto num_rows = topology.num_tokens_per_train_step / topology.sequence_length;
  RunData data;
  // The source reads through the tokenizer and the chats for as long as it lives.
  data.feed.fill = [source, model, chats, num_rows, num_ranks = topology.mesh.num_data_ranks()](TrainBatch& batch) {
    deal(source->next(num_rows), num_ranks, batch);
  };
  data.feed.cursor = [source] { return source->cursor(); };
  data.seek = [source](const TextCursor& cursor) { source->seek(cursor); };
  if (has_validation) {
    const TextSource held_out(text_options(topology, *model, true), tokenizer, chats.get());
    auto made = std::make_shared<TrainBatch>();
    deal(held_out.one_pass(topology.num_validation_tokens), topology.mesh.num_data_ranks(), *made);
    data.validation.batch = std::move(made);
  }
  return data;
}

RunData open_pairs(const PretrainTopology& topology, const ChatDocuments& chats, bool has_validation) {
  const auto source = std::make_shared<PreferenceSource>(pair_options(topology, false), chats);
  auto all = std::make_shared<std::vector<PreferencePair>>(source->pairs());
  RunData data;
  data.feed.fill = [source, num_pairs = topology.num_pairs_per_train_step](TrainBatch& batch) {
    batch.pairs = source->next(num_pairs);
  };
  data.feed.cursor = [source] { return source->cursor(); };
  data.seek = [source](const TextCursor& cursor) { source->seek(cursor); };
  if (has_validation) {
    const PreferenceSource held_out(pair_options(topology, true), chats);
    auto made = std::make_shared<TrainBatch>();
    const auto& pairs = held_out.pairs();
    const auto num_pairs = std::min(pairs.size(), static_cast<size_t>(topology.num_validation_pairs));
    made->pairs.assign(pairs.begin(), pairs.begin() + static_cast<ptrdiff_t>(num_pairs));
    all->insert(all->end(), made->pairs.begin(), made->pairs.end());
    data.validation.batch = std::move(made);
  }
  if (topology.learner.preference.loss != "bradley-terry") data.pairs = std::move(all);
  return data;
}

RunData open_data(const PretrainTopology& topology, const std::shared_ptr<const ModelSource>& model) {
  const bool has_validation = topology.num_validation_tokens > 0 &&
                              (!topology.data.validation_paths.empty() || topology.data.validation_fraction > 0);
  std::shared_ptr<const ChatDocuments> chats;
  if (topology.objective != TrainObjective::kText)
    chats = std::make_shared<const ChatDocuments>(*model->tokenizer(), model->chat_template(),
                                                  model->tokenizer_config(), eos_token_id(*model), topology.data.chat);
  return topology.objective == TrainObjective::kPreference ? open_pairs(topology, *chats, has_validation)
                                                           : open_rows(topology, model, chats, has_validation);
}

void check(const PretrainTopology& topology) {
  if (topology.objective == TrainObjective::kPreference) return check_preference(topology.learner.preference);
  const auto rows = topology.num_tokens_per_train_step / topology.sequence_length;
  if (rows < topology.mesh.num_data_ranks())
    throw UsageError(concat("training.num_tokens_per_train_step = ", topology.num_tokens_per_train_step, " gives ",
                            rows, " rows of ", topology.sequence_length, " tokens for ", topology.mesh.num_data_ranks(),
                            " ranks: at least one each is needed"));
}

std::shared_ptr<const ModelSource> open_model(const PretrainTopology& topology) {
  refuse_own_model("model.path", topology.model.path, topology.run.folder);
  refuse_own_model("reference.path", topology.reference.path, topology.run.folder);
  const auto model = std::make_shared<const ModelSource>(topology.model, topology.run.seed);
  model->check_weights();
  check_parallel(model->config(), topology.mesh, topology.learner.parallel);
  require(model->tokenizer() != nullptr, topology.model.path, ": no tokenizer, which text needs");
  return model;
}

}  // namespace

int run_pretrain(const PretrainTopology& topology) {
  check(topology);
  const int threads = topology.threads > 0 ? topology.threads : num_usable_cores();
  const auto observer = std::make_shared<ObserverGate>(topology.observer);
  const auto trace = std::make_shared<Trace>(topology.metrics.enable_trace);
  const auto model = open_model(topology);
  const auto data = open_data(topology, model);
  std::shared_ptr<const ModelSource> reference;
  if (data.pairs != nullptr) reference = open_reference(topology.reference, topology.model, model, topology.run.seed);
  const auto resumed = find_resume(topology.checkpoint, topology.run.folder);
  int64_t first_step = 0;
  double time_s = 0;
  if (resumed) {
    if (!resumed->state.contains("cursor"))
      throw UsageError(concat(resumed->path.string(), " is a checkpoint of reinforcement learning, which holds no ",
                              "place in this run's data: give the run another run.folder, and start it from that ",
                              "one's weights with checkpoint.initial_load_path"));
    first_step = resumed->state.at("step");
    time_s = resumed->state.value("time_s", 0.0);
    data.seek(resumed->state.at("cursor").get<TextCursor>());
  }
  const auto initial_weights = resumed ? std::filesystem::path() : find_initial_weights(topology.checkpoint);
  const auto folder = open_run_folder(topology.run, topology.checkpoint, resumed ? first_step : -1);
  if (resumed) observer->say(concat("resuming after step ", first_step, " from ", resumed->path.string()));
  const auto recorder = std::make_shared<RunRecorder>(folder, trace, observer, topology.run.seed);
  recorder->set_time_before(time_s);
  const auto limit = milliseconds_of(topology.limits.request_timeout_s);
  auto shard = shard_setup(topology.learner, topology.run, topology.checkpoint, topology.mesh, threads, limit);
  shard.model = model;
  shard.observer = observer;
  shard.reference = reference;
  shard.reference_pairs = data.pairs;
  if (resumed) shard.resume_from = resumed->path;
  shard.initial_weights = initial_weights;
  shard.num_steps = topology.run.steps;
  shard.first_step = first_step;

  CastList cast;
  cast.restarts = restart_options(topology.limits);
  cast.observer = observer;
  DataSetup feed;
  feed.feed = data.feed;
  feed.first_step = first_step;
  feed.num_steps = topology.run.steps;
  feed.save_interval = topology.checkpoint.enable ? topology.checkpoint.interval : 0;
  feed.save_at_end = topology.checkpoint.enable;
  feed.validation_interval = topology.validation_interval;
  feed.validate = data.validation.batch != nullptr;
  feed.recorder = recorder;
  auto trainer = trainer_setup(topology.mesh, shard, trace, observer, limit);
  trainer.first_step = first_step;
  trainer.write_model = topology.checkpoint.last_save_in_hf;
  trainer.validation = data.validation;
  cast_data_and_trainer(cast, std::move(feed), std::move(trainer));
  return play_and_finish(std::move(cast), play_options(topology.limits, topology.handle_signals), recorder, trace,
                         topology.run.folder, topology.metrics.enable_trace);
}

nlohmann::json describe(const PretrainTopology& topology) {
  check(topology);
  const auto opened = open_model(topology);
  const auto& model = *opened;
  open_data(topology, opened);
  return {{"roles", {{"data", 1}, {"trainer", 1}, {"shard", topology.mesh.num_ranks()}, {"supervisor", 1}}},
          {"parameters", model.config().num_parameters()},
          {"memory_bytes", describe_memory(model.config(), topology.mesh, topology.checkpoint)}};
}

}  // namespace troupe
