// The configuration: what it accepts, and that every mistake names key, value and cure (B146, B149).
#include "apps/config.h"

#include <unistd.h>

#include <filesystem>

#include "actors/model_source.h"
#include "apps/build_topology.h"
#include "apps/text_model.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/doctest.h"

using namespace troupe;
using troupe::apps::Config;

namespace {

std::string message_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  try {
    Config::from_text(toml, "test.toml", overrides);
  } catch (const UsageError& error) {
    CHECK(error.exit_code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A configuration that RL accepts.
const std::string base =
    "[model]\npath = \"configs/models/shakespeare-llama\"\n[data]\nkind = \"arithmetic\"\n[[reward]]\nkind = "
    "\"number\"\n";

AlgorithmOptions algorithm_of(const std::string& more) {
  return apps::build_rl_topology(Config::from_text(base + more, "test.toml", {})).learner.algorithm;
}

std::string rl_error(const std::string& more) {
  try {
    apps::build_rl_topology(Config::from_text(base + more, "test.toml", {}));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("defaults, file and command line, in this order") {
  const auto config = Config::from_text("[training]\nsteps = 7\n[optimizer]\nlr = 1\n", "test.toml",
                                        {"--training.steps=9", "--sampling.stop=[\"a\", \"b\"]", "--run.name=x y"});
  CHECK(config.integer("training.steps") == 9);
  CHECK(config.value("training.steps").origin == "command line");
  CHECK(config.number("optimizer.lr") == 1.0);
  CHECK(config.value("optimizer.lr").origin == "test.toml:4");
  CHECK(config.strings("sampling.stop") == std::vector<std::string>{"a", "b"});
  CHECK(config.string("run.name") == "x y");
  CHECK(config.number("optimizer.beta1") == 0.9);
  CHECK(config.is_default("optimizer.beta1"));
  CHECK(config.integer_or("topology.threads", 3) == 3);
}

TEST_CASE("B146 unknown keys stop with the key and a near match") {
  auto text = message_of("[training]\nstps = 3\n");
  CHECK(mentions(text, "training.stps"));
  CHECK(mentions(text, "training.steps"));
  CHECK(mentions(text, "test.toml:2"));
  text = message_of("learning_rate = 1.0\n");
  CHECK(mentions(text, "learning_rate"));
  CHECK(mentions(text, "optimizer.lr"));
  text = message_of("[optimiser]\nlr = 1.0\n");
  CHECK(mentions(text, "optimiser.lr"));
  CHECK(mentions(text, "optimizer.lr"));
  text = message_of("[algorithm]\nnum-epochs = 2\n");
  CHECK(mentions(text, "algorithm.num-epochs"));
  CHECK(mentions(text, "algorithm.num_epochs"));
  text = message_of("", {"--training.step=3"});
  CHECK(mentions(text, "training.step"));
  CHECK(mentions(text, "training.steps"));
  CHECK(mentions(text, "command line"));
  CHECK(mentions(message_of("", {"training.steps=3"}), "--section.key=value"));
  CHECK(mentions(message_of("", {"--training.steps"}), "--section.key=value"));
}

TEST_CASE("wrong types and values name key, value and what would be right") {
  CHECK(mentions(message_of("[training]\nsteps = 3.5\n"), "training.steps takes a whole number, not 3.5"));
  CHECK(mentions(message_of("[training]\nsteps = \"3\"\n"), "training.steps takes a whole number"));
  CHECK(mentions(message_of("[optimizer]\nlr = \"fast\"\n"), "optimizer.lr takes a number, not \"fast\""));
  CHECK(mentions(message_of("[optimizer]\nlr = nan\n"), "optimizer.lr takes a number"));
  CHECK(mentions(message_of("[training]\nsteps = 0\n"), "training.steps = 0 is below 1"));
  CHECK(mentions(message_of("[rollout]\ndtype = \"float16\"\n"), "known: auto, float32, bfloat16"));
  CHECK(mentions(message_of("[run]\nname = 2020-01-01\n"), "run.name"));
  CHECK(mentions(message_of("[run\nname = 1\n"), "test.toml:1: not valid TOML"));
  CHECK(mentions(message_of("", {"--training.steps=many"}), "training.steps takes a whole number, not many"));
  CHECK(mentions(message_of("", {"--optimizer.lr=1e400"}), "optimizer.lr"));
  CHECK(mentions(message_of("", {"--run.name=a\xff"}), "run.name is not valid UTF-8"));
  CHECK(mentions(message_of("", {"--training.steps=3\nx = 4"}), "training.steps takes a whole number"));
}

TEST_CASE("numbers that no machine could serve are refused, instead of losing their upper bits") {
  for (const char* name : {"topology.threads", "topology.rollout_threads", "sampling.max_new_tokens",
                           "training.max_context_length", "training.skip_nonfinite_steps", "rollout.kv_cache_mib",
                           "async_loop.num_prompts_per_train_step", "preference.num_pairs_per_train_step"})
    for (const char* value : {"4294967296", "99999999999999"}) {
      const auto told = message_of("", {concat("--", name, "=", value)});
      CHECK_MESSAGE(mentions(told, concat(name, " = ", value, " is above")), told);
    }
  CHECK(mentions(message_of("", {"--cluster.request_timeout_s=1e300"}), "request_timeout_s"));
  CHECK(message_of("", {"--run.seed=20261130123456789"}) == "");
}

TEST_CASE("what is printed can be read again") {
  const auto config = Config::from_text(
      "[run]\nname = \"a \\\"b\\\" \\n c\"\n[optimizer]\nlr = 2.5e-7\n[sampling]\nstop = [\"x\"]\n[[reward]]\nkind = "
      "\"regex\"\npattern = \"a\\\\d\"\nweight = 2.0\n",
      "test.toml", {});
  const auto again = Config::from_text(config.print(true), "printed", {});
  for (const auto& key : apps::config_keys())
    CHECK_MESSAGE(again.value(key.name).value == config.value(key.name).value, key.name);
  CHECK(again.rewards() == config.rewards());
}

TEST_CASE("every key has a help text, a fitting default and a unique name") {
  std::set<std::string> names;
  for (const auto& key : apps::config_keys()) {
    CHECK_MESSAGE(names.insert(key.name).second, key.name);
    CHECK_MESSAGE(!key.help.empty(), key.name);
  }
  const Config config;
  CHECK_NOTHROW(Config::from_text(config.print(false), "printed", {}));
}

TEST_CASE("a key reaches the part that it is for") {
  const auto config = Config::from_text(
      "[model]\npath = \"configs/models/shakespeare-llama\"\n[data]\nkind = \"arithmetic\"\n[[reward]]\nkind = "
      "\"number\"\n[activation_checkpoint]\nmode = \"full\"\n",
      "test.toml", {});
  CHECK(apps::build_rl_topology(config).learner.activation_checkpoint == "full");
  const auto more = Config::from_text(
      "[model]\npath = \"configs/models/shakespeare-llama\"\n[data]\nkind = \"arithmetic\"\n[[reward]]\nkind = "
      "\"number\"\n[parallelism]\ndata_parallel_shard_degree = 2\ndata_parallel_replicate_degree = 3\n"
      "fsdp_reshard_after_forward = \"never\"\n[checkpoint]\nasync_mode = \"disabled\"\n",
      "test.toml", {});
  const auto topology = apps::build_rl_topology(more);
  CHECK((topology.mesh == MeshDegrees{.replicate = 3, .shard = 2}));
  CHECK(topology.learner.parallel.sharding.reshard_after_forward == "never");
  CHECK(!topology.checkpoint.is_async);
  CHECK(apps::build_rl_topology(config).checkpoint.is_async);
}

TEST_CASE("an algorithm's name fills the keys that nobody has set, and explicit ones win") {
  const auto resolved = [](const std::string& section) {
    return algorithm_of("[algorithm]\n" + section + "\n[sampling]\nmax_new_tokens = 100\n");
  };
  for (const auto& name : known_algorithms()) {
    CAPTURE(name);
    auto expected = algorithm_preset(name);
    complete_algorithm(expected, 100);
    const auto options = resolved("name = \"" + name + "\"");
    CHECK(options.name == name);
    CHECK(options.advantage == expected.advantage);
    CHECK(options.advantage_std == expected.advantage_std);
    CHECK(options.whiten_advantages == expected.whiten_advantages);
    CHECK(options.policy_loss == expected.policy_loss);
    CHECK(options.clip_low == expected.clip_low);
    CHECK(options.clip_high == expected.clip_high);
    CHECK(options.ratio_max == expected.ratio_max);
    CHECK(options.aggregation == expected.aggregation);
    CHECK(options.constant_length == 100);
    CHECK(options.kl_in == expected.kl_in);
    CHECK(options.kl_estimator == expected.kl_estimator);
    CHECK(options.zero_variance == expected.zero_variance);
    CHECK(options.overlong == expected.overlong);
    CHECK(options.overlong_max_tokens == 100);
    CHECK(options.overlong_buffer == 20);
  }
  const auto dapo = resolved("name = \"dapo\"");
  CHECK(dapo.clip_high == 0.28);
  CHECK(dapo.zero_variance == "refill");
  CHECK(dapo.overlong == "penalty");
  const auto mixed = resolved(
      "name = \"dapo\"\nclip_high = 0.3\noverlong = \"keep\"\nkl_coefficient = 0.1\nkl_target = 0.05\ncorrection = "
      "\"token-band\"\nold_log_probs = \"recomputed\"\ncorrection_low = 0.25\ncorrection_high = 4\nnum_epochs = 3\n"
      "num_minibatches = 2\nentropy_coefficient = 0.01\ndual_clip = 3");
  CHECK(mixed.clip_high == 0.3);
  CHECK(mixed.zero_variance == "refill");
  CHECK(mixed.overlong == "keep");
  CHECK(mixed.kl_coefficient == 0.1);
  CHECK(mixed.kl_target == 0.05);
  CHECK(mixed.correction == "token-band");
  CHECK(mixed.correction_low == 0.25);
  CHECK(mixed.correction_high == 4);
  CHECK(mixed.num_epochs == 3);
  CHECK(mixed.num_minibatches == 2);
  CHECK(mixed.entropy_coefficient == 0.01);
  CHECK(mixed.dual_clip == 3);
  // A value equal to the default is still the user's: it beats the preset.
  CHECK(resolved("name = \"dapo\"\nclip_high = 0.2").clip_high == 0.2);
  CHECK(resolved("name = \"reinforce_plus_plus\"\ngamma = 0.9").gamma == 0.9);
  const auto config = Config::from_text("[algorithm]\nname = \"gspo\"\n", "test.toml", {});
  CHECK(config.value("algorithm.clip_low").origin == "preset gspo");
  CHECK(config.value("algorithm.gamma").origin == "default");
}

TEST_CASE("algorithm keys that do not go together stop with both names") {
  const auto both = [](const std::string& section, const std::string& first, const std::string& second) {
    const auto text = rl_error("[algorithm]\n" + section);
    CHECK_MESSAGE(mentions(text, first), text);
    CHECK_MESSAGE(mentions(text, second), text);
  };
  both("[critic]\nlr = 1e-4\n", "critic.lr", "algorithm.advantage");
  both("kl_target = 0.1\n", "kl_target", "kl_coefficient");
  both("correction = \"token-band\"\n", "correction", "old_log_probs");
  both("gamma = 0.5\n", "gamma", "algorithm.advantage");
  both("lambda = 0.5\n", "lambda", "algorithm.advantage");
  both("name = \"rloo\"\ndual_clip = 3\n", "dual_clip", "policy_loss");
  both("name = \"remax\"\nzero_variance = \"drop\"\n", "zero_variance", "greedy_baseline");
  both("name = \"dapo\"\noverlong_max_tokens = 1000\n", "overlong_max_tokens", "sampling.max_new_tokens");
  both("[reference]\npath = \"configs\"\n", "reference.path", "kl_coefficient");
  both("name = \"trpo\"\n", "algorithm.name", "reinforce_plus_plus");
  const std::string single = "[async_loop]\nnum_samples_per_prompt = 1\n";
  for (const char* name : {"remax", "reinforce_plus_plus"})
    CHECK(rl_error(single + "[algorithm]\nname = \"" + name + "\"\n") == "");
  CHECK(mentions(rl_error(single + "[algorithm]\nname = \"reinforce_plus_plus\"\nzero_variance = \"drop\"\n"),
                 "zero_variance"));
}

TEST_CASE("impossible combinations are refused before anything is loaded") {
  CHECK(rl_error("") == "");
  CHECK(mentions(rl_error("[async_loop]\nnum_samples_per_prompt = 1\n"), "needs at least 2"));  // B149
  CHECK(mentions(rl_error("[sampling]\ntemperature = 0\n"), "temperature above 0"));
  CHECK(mentions(rl_error("[run]\ndeterministic = true\n"), "target_offpolicy_steps = 0"));
  CHECK(mentions(rl_error("[algorithm]\ndual_clip = 0.5\n"), "dual_clip"));
  CHECK(mentions(rl_error("[algorithm]\nnum_minibatches = 9\n"), "num_prompts_per_train_step"));
  CHECK(mentions(rl_error("[parallelism]\ndata_parallel_shard_degree = 0\n"), "data_parallel_shard_degree"));
  CHECK(mentions(rl_error("[parallelism]\ndata_parallel_shard_degree = 16\ndata_parallel_replicate_degree = 5\n"),
                 "replicate 5 * shard 16 * context 1 * tensor 1 = 80"));
  CHECK(mentions(rl_error("[parallelism]\nranks = \"processes\"\n"), "parallelism.ranks"));
  CHECK(mentions(rl_error("[sampling]\nmax_new_tokens = 4096\n"), "no room for a prompt"));
  CHECK(mentions(rl_error("[checkpoint]\nresume = \"/nowhere\"\n"), "no such folder"));
  CHECK(mentions(rl_error("[lr_scheduler]\nwarmup_steps = 101\n"), "warmup_steps"));
  CHECK(mentions(rl_error("[[reward]]\nkind = \"nummer\"\n"), "number"));
  CHECK(mentions(rl_error("[[reward]]\nkind = \"number\"\n"), "two [[reward]] tables"));
  CHECK(mentions(rl_error("[[reward]]\nname = \"x\"\nkind = \"number\"\ncolour = 1\n"), "colour"));
  const auto second = [](const std::string& more) { return rl_error("[[reward]]\nname = \"x\"\n" + more); };
  CHECK(mentions(second("kind = \"number\"\nweight = nan\n"), "reward.weight"));
  CHECK(mentions(second("kind = \"number\"\nweight = true\n"), "reward.weight = true has the wrong type"));
  CHECK(mentions(second("kind = \"number\"\ntimeout_s = 1e300\n"), "reward.timeout_s"));
  CHECK(mentions(second("kind = 3\n"), "reward.kind = 3 has the wrong type"));
  CHECK(mentions(second("kind = \"length\"\nslope = inf\n"), "reward.slope"));
  CHECK(mentions(rl_error("[sampling]\nstop = [\"\"]\n"), "sampling.stop"));
}

TEST_CASE("B032 a model's generation_config.json gives its end ids and no sampling settings") {
  namespace fs = std::filesystem;
  const auto folder = fs::temp_directory_path() / concat("troupe-generation-config-", ::getpid());
  fs::remove_all(folder);
  fs::copy(fs::path(TROUPE_SOURCE_DIR) / "tests/fixtures/models/llama", folder);
  write_file_atomically(folder / "generation_config.json", R"({"do_sample": true, "top_k": 20, "top_p": 0.8,
    "min_p": 0.1, "repetition_penalty": 1.1, "temperature": 0.6, "eos_token_id": [2, 5]})");
  const auto toml = concat("[model]\npath = \"", folder.string(),
                           "\"\n[data]\nkind = \"arithmetic\"\n[[reward]]\nkind = \"number\"\n");
  const auto topology = apps::build_rl_topology(Config::from_text(toml, "test.toml", {}));
  CHECK(topology.sampling.temperature == 1);
  CHECK(topology.sampling.top_p == 1);
  CHECK(topology.sampling.top_k == 0);
  CHECK(topology.sampling.min_p == 0);
  CHECK(topology.learner.algorithm.temperature == 1);  // the trainer's log-probs are of the same distribution
  const std::vector<int64_t> ends = {2, 5};            // config.json has 2 alone
  CHECK(ModelSource(topology.model, 0).stop_token_ids() == ends);
  const auto model = apps::open_text_model(folder);
  CHECK(stop_token_ids(model.config(), model.tokenizer.get()) == ends);
  fs::remove_all(folder);
}

TEST_CASE("letters outside of quotes are an error, not what the reader holds for impossible") {
  for (const char* text : {"ru\xcf\x9dz = 1\n", "caf\xc3\xa9 = 1\n", "[tr\xc3\xa4ning]\n", "a = \xcf\x9d\n"})
    CHECK_THROWS_AS(Config::from_text(text, "letters.toml", {}), UsageError);
}

TEST_CASE("what somebody has set, printed, gives the same configuration again") {
  std::vector<std::string> texts{base +
                                 "[sampling]\nstop = [\"a\\n\", \"\\u00e4\"]\n[algorithm]\nname = "
                                 "\"ppo\"\nkl_coefficient = 0.05\n[critic]\nlr = 3e-6\n"
                                 "[[reward]]\nkind = \"remote\"\ncommand = \"x --y \\\"z\\\"\"\nweight = 1\n\"an odd "
                                 "key\" = [1, 2.5, { a = true }]\n"};
  for (const char* name :
       {"quickstart", "reasoning-gym", "sft-tiny", "dpo-tiny", "reward-model-tiny", "pretrain-shakespeare"})
    texts.push_back(read_file(std::filesystem::path(TROUPE_SOURCE_DIR) / "configs" / concat(name, ".toml")));
  for (const auto& text : texts) {
    CAPTURE(text);
    const auto config = Config::from_text(text, "given.toml", {"--run.seed=7"});
    CHECK(Config::from_text(config.print_given(), "again.toml", {}).print(false) == config.print(false));
  }
}

TEST_CASE("[[topology.place]] puts the rules into other processes; what cannot be placed is refused by its name") {
  const auto place = [](const std::string& keys) { return "[[topology.place]]\n" + keys; };
  const auto config =
      Config::from_text(base + place("role = \"reward\"\nwhere = \"remote\"\n"), "test.toml", {"--topology.threads=2"});
  const auto topology = apps::build_rl_topology(config);
  CHECK(topology.cluster.remote_roles == std::set<std::string>{"reward"});
  CHECK(topology.cluster.listen);
  const auto again = apps::build_rl_topology(Config::from_text(config.print_given(), "printed.toml", {}));
  CHECK(again.cluster.remote_roles == topology.cluster.remote_roles);
  CHECK(again.threads == 2);
  const auto local = apps::build_rl_topology(Config::from_text(base + place("role = \"reward\"\n"), "test.toml", {}));
  CHECK(local.cluster.remote_roles.empty());
  CHECK(!local.cluster.listen);
  CHECK(mentions(rl_error(place("role = \"policy\"\nwhere = \"remote\"\n")), "role = \"policy\""));
  CHECK(mentions(rl_error(place("role = \"reward\"\nwhere = \"moon\"\n")), "where = \"moon\""));
  CHECK(mentions(rl_error(place("role = \"reward\"\ncounts = \"3\"\n")), "unknown key counts"));
  CHECK(mentions(rl_error(place("role = 3\n")), "role = 3 is not a text"));
  CHECK(mentions(rl_error(place("role = \"reward\"\nwhere = \"remote\"\n") + place("role = \"reward\"\n")),
                 "placed twice"));
  // Files that rules name are looked for where rules run; evaluation runs them here.
  const std::string model = "[[reward]]\nkind = \"model\"\npath = \"/nowhere\"\n",
                    remote = place("role = \"reward\"\nwhere = \"remote\"\n"),
                    silent = "[evaluation]\nnum_prompts = 0\n";
  const auto build = [&](const std::string& more) {
    return apps::build_rl_topology(Config::from_text(base + model + more, "test.toml", {}));
  };
  CHECK(build(remote + silent).rewards.at(1).is_elsewhere);
  CHECK_THROWS_AS(build(silent), Error);
  CHECK_THROWS_AS(build(remote + "[evaluation]\nnum_prompts = 4\n"), Error);
  CHECK(mentions(message_of("[topology]\nplace = 3\n"), "[[topology.place]] tables"));
}
