// `troupe plan CONFIG`: what a training step will need on devices that nobody has yet. The configuration is that of a
// run; the model's config.json is enough.
#include <filesystem>
#include <iomanip>
#include <iostream>

#include "apps/build_topology.h"
#include "apps/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "models/formats/checkpoint_reader.h"

namespace troupe::apps {
namespace {

struct PlanCommand {
  std::string config, device = "H100";
  double efficiency = 0, peak_tflops = 0, memory_gb = 0;  // 0: the device's own
  int devices_per_node = 8;
  bool as_json = false;
};

ModelConfig read_model_config(const std::filesystem::path& path) {
  const auto description = path / "config.json";
  if (!std::filesystem::exists(description)) return open_checkpoint(path)->config();
  const auto json = nlohmann::json::parse(read_file(description), nullptr, false);
  require(json.is_object(), description.string(), " is not a JSON object");
  return parse_model_config(json);
}

DeviceFigures device_of(const PlanCommand& command) {
  auto device = known_device(command.device);
  if (command.efficiency > 0) device.efficiency = command.efficiency;
  if (command.peak_tflops > 0) device.peak_flops = command.peak_tflops * 1e12;
  if (command.memory_gb > 0) device.memory_bytes = command.memory_gb * 1e9;
  device.devices_per_node = command.devices_per_node;
  return device;
}

nlohmann::ordered_json memory_json(const MemoryNeed& memory) {
  return {{"parameters", memory.parameters},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"gathered", memory.gathered},
          {"unreduced", memory.unreduced},
          {"activations", memory.activations},
          {"head", memory.head},
          {"total", memory.total()}};
}

nlohmann::ordered_json describe(const PlanTopology& plan, const ModelConfig& config, const DeviceFigures& device,
                                const StepEstimate& estimate) {
  auto transfers = nlohmann::ordered_json::array();
  for (const auto& transfer : estimate.slowest.transfers)
    transfers.push_back({{"group", transfer.group},
                         {"operation", transfer.operation},
                         {"what", transfer.label},
                         {"calls", transfer.calls},
                         {"bytes", transfer.bytes}});
  const auto& mesh = plan.mesh;
  const int num_ranks = mesh.num_ranks();
  const auto speed = [&](double seconds) {
    return nlohmann::ordered_json{{"step_s", seconds},
                                  {"tokens_per_s_per_device", estimate.tokens / seconds / num_ranks},
                                  {"mfu", estimate.mfu(device, num_ranks, seconds)}};
  };
  return {{"model", {{"model_type", config.model_type}, {"num_parameters", config.num_parameters()}}},
          {"device",
           {{"name", device.name},
            {"peak_tflops", device.peak_flops / 1e12},
            {"efficiency", device.efficiency},
            {"memory_bytes", device.memory_bytes},
            {"devices_per_node", device.devices_per_node}}},
          {"mesh",
           {{"pipeline", mesh.pipeline},
            {"replicate", mesh.replicate},
            {"shard", mesh.shard},
            {"context", mesh.context},
            {"tensor", mesh.tensor},
            {"expert", mesh.expert},
            {"ranks", num_ranks}}},
          {"tokens_per_step", estimate.tokens},
          {"num_microbatches", plan.shape.num_microbatches},
          {"memory_bytes", memory_json(estimate.fullest.memory)},
          {"fits", static_cast<double>(estimate.fullest.memory.total()) <= device.memory_bytes},
          {"transfers", transfers},
          {"bubble", estimate.bubble},
          {"compute_s", estimate.slowest.compute_s},
          {"shard_transfer_s", estimate.slowest.shard_transfer_s},
          {"other_transfer_s", estimate.slowest.other_transfer_s},
          {"optimizer_s", estimate.optimizer_s},
          {"as_built", speed(estimate.step_s)},
          {"overlapped", speed(estimate.overlapped_step_s)}};
}

void print(const PlanTopology& plan, const nlohmann::ordered_json& json) {
  const auto giga = [](const nlohmann::ordered_json& bytes) { return bytes.get<double>() / 1e9; };
  auto& out = std::cout;
  out << std::fixed << std::setprecision(2);
  out << json["model"]["model_type"].get<std::string>() << ", " << giga(json["model"]["num_parameters"])
      << " billion parameters on " << plan.mesh.num_ranks() << " x " << json["device"]["name"].get<std::string>()
      << " (" << json["device"]["devices_per_node"] << " a node)\n"
      << troupe::describe(plan.mesh) << "\n"
      << json["num_microbatches"] << " micro-batches of " << plan.shape.tokens_per_microbatch << " tokens a data rank, "
      << static_cast<int64_t>(json["tokens_per_step"].get<double>())
      << " tokens a step\n\nmemory of the fullest rank, GB\n";
  for (const auto& [name, bytes] : json["memory_bytes"].items())
    out << "  " << std::left << std::setw(14) << name << std::right << std::setw(10) << giga(bytes) << "\n";
  out << "  " << std::left << std::setw(14) << "of the device" << std::right << std::setw(10)
      << giga(json["device"]["memory_bytes"]) << (json["fits"].get<bool>() ? "" : "   does not fit") << "\n\n"
      << "transfers of the slowest rank, a step\n";
  for (const auto& transfer : json["transfers"])
    out << "  " << std::left << std::setw(14) << transfer["group"].get<std::string>() << std::setw(15)
        << transfer["operation"].get<std::string>() << std::setw(34) << transfer["what"].get<std::string>()
        << std::right << std::setw(8) << transfer["calls"] << " calls " << std::setw(10) << giga(transfer["bytes"])
        << " GB\n";
  out << "\nseconds a step: compute " << json["compute_s"].get<double>() << " at "
      << 100 * json["device"]["efficiency"].get<double>() << " % of " << json["device"]["peak_tflops"].get<double>()
      << " TFLOP/s, parameters and gradients " << json["shard_transfer_s"].get<double>() << ", between layers "
      << json["other_transfer_s"].get<double>() << ", optimizer " << json["optimizer_s"].get<double>()
      << "; idle share of the pipeline " << 100 * json["bubble"].get<double>() << " %\n";
  for (const auto& [key, title] : {std::pair("as_built", "nothing overlaps (as built)"),
                                   std::pair("overlapped", "parameters travel behind compute")})
    out << "  " << std::left << std::setw(34) << title << std::right << std::setw(10)
        << json[key]["step_s"].get<double>() << " s" << std::setw(12)
        << json[key]["tokens_per_s_per_device"].get<double>() << " tokens/s a device   MFU "
        << 100 * json[key]["mfu"].get<double>() << " %\n";
}

int plan(const PlanCommand& command, const std::vector<std::string>& overrides) {
  const auto topology = build_plan_topology(Config::load(command.config, overrides));
  const auto config = read_model_config(topology.model_path);
  const auto device = device_of(command);
  const auto json = describe(topology, config, device,
                             estimate_step(config, topology.mesh, topology.parallel, topology.shape, device));
  if (command.as_json) {
    std::cout << json.dump(2) << "\n";
  } else {
    print(topology, json);
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto options = std::make_shared<PlanCommand>();
  auto* command = app.add_subcommand("plan", "memory, transfers, idle time and speed of a layout, without its devices");
  command->add_option("config", options->config, "CONFIG.toml; any key can be overridden by --section.key=value")
      ->required();
  command->add_option("--device", options->device, "A100, H100, H200 or B200")->capture_default_str();
  command->add_option("--devices-per-node", options->devices_per_node, "devices that share a node's links")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--efficiency", options->efficiency, "share of the peak that a layer reaches (0.45)")
      ->check(CLI::Range(0.01, 1.0));
  command->add_option("--peak-tflops", options->peak_tflops, "instead of the device's own")->check(CLI::PositiveNumber);
  command->add_option("--memory-gb", options->memory_gb, "instead of the device's own")->check(CLI::PositiveNumber);
  command->add_flag("--json", options->as_json, "print one JSON object");
  command->allow_extras();
  command->callback(
      [command, options, &action] { action = [command, options] { return plan(*options, command->remaining()); }; });
}

}  // namespace troupe::apps
