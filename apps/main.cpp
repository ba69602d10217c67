// Entry of `troupe`: reads the command line, runs one subcommand, returns its exit code.
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>

#include "apps/commands.h"
#include "base/error.h"
#include "base/log.h"
#ifdef TROUPE_WITH_CUDA
#include "parallel/cuda/register.h"
#endif

namespace {

/// Sets what libraries read from the environment before main, unless the user chose otherwise, and starts the program
/// anew once where something was missing:
///   - OpenMP's default wait policy, spinning, burns the cores that other actors of this process need;
///   - oneDNN and torch's layer above it keep 1,024 compiled matrix products each (the latter for every thread), up to
///     260 KB apiece. Packed rows differ in length from step to step, so they fill: half a gigabyte of products that
///     are not met again. One step's products are fewer than 64.
void restart_with_settings(char** arguments) {
  struct Setting {
    const char *name, *value, *also_called;
  };
  constexpr Setting kSettings[] = {{"OMP_WAIT_POLICY", "passive", "GOMP_SPINCOUNT"},
                                   {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64", "DNNL_PRIMITIVE_CACHE_CAPACITY"},
                                   {"LRU_CACHE_CAPACITY", "64", "LRU_CACHE_CAPACITY"}};
  bool is_missing = false;
  for (const auto& setting : kSettings) {
    if (std::getenv(setting.name) != nullptr || std::getenv(setting.also_called) != nullptr) continue;
    is_missing = true;
    ::setenv(setting.name, setting.value, 1);
  }
  if (is_missing) ::execv("/proc/self/exe", arguments);  // returns only where /proc is absent: then defaults stay
}

}  // namespace

int main(int argc, char** argv) {
  restart_with_settings(argv);
  // Large tensors come back to the heap instead of the kernel: fresh pages would be faulted in at every step.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
#ifdef TROUPE_WITH_CUDA
  troupe::register_cuda();
#endif

  CLI::App app{"Troupe: reinforcement learning of language models as a troupe of actors"};
  app.require_subcommand(1);
  app.set_version_flag("--version", TROUPE_VERSION);
  bool verbose = false;
  app.add_flag("--verbose", verbose, "log more");
  troupe::apps::Action action;
  troupe::apps::add_rl(app, action);
  troupe::apps::add_pretrain(app, action);
  troupe::apps::add_plan(app, action);
  troupe::apps::add_sft(app, action);
  troupe::apps::add_reward_model(app, action);
  troupe::apps::add_dpo(app, action);
  troupe::apps::add_pipeline(app, action);
  troupe::apps::add_replay(app, action);
  troupe::apps::add_worker(app, action);
  troupe::apps::add_top(app, action);
  troupe::apps::add_generate(app, action);
  troupe::apps::add_verify(app, action);
  troupe::apps::add_tokenize(app, action);
  troupe::apps::add_chat_template(app, action);
  troupe::apps::add_report(app, action);
  troupe::apps::add_keys(app, action);
  troupe::apps::add_doctor(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(troupe::ExitCode::kUsage);
  }
  if (verbose) troupe::log::set_level(troupe::log::Level::kDebug);
  try {
    return action();
  } catch (const troupe::Error& error) {
    troupe::log::error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    troupe::log::error("out of memory");
  } catch (const std::exception& error) {
    troupe::log::error(error.what());
  }
  return static_cast<int>(troupe::ExitCode::kFailed);
}
