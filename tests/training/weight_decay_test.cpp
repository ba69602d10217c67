// Which parameters decay: matrices, and no bias whatever its shape.
#include "models/formats/checkpoint_reader.h"
#include "parallel/fully_sharded.h"
#include "tests/doctest.h"
#include "tests/models/family_folders.h"
#include "training/optimizer.h"

namespace troupe {

TEST_CASE("weight decay spares the biases of experts, which are matrices by their shape") {
  const auto reader = open_checkpoint(testing::family_fixtures() / "gpt_oss");
  const auto& config = reader->config();
  const auto weights = load_weights(*reader, at::kFloat);
  auto collectives = make_thread_collectives(1, std::chrono::seconds(10));
  Decoder decoder(config);
  FullyShardedDecoder sharded(decoder, *collectives.front(), {});
  sharded.load([&](const std::string& name) { return weights.at(name); });
  OptimizerOptions options;
  options.lr = 0.1;
  options.weight_decay = 0.5;
  const auto optimizer = make_optimizer(options, sharded.shards(), sharded.pieces(), parameter_specs(config));
  optimizer->update(options.lr, 1, 1);  // without gradients nothing but the decay is left
  sharded.parameters_changed();
  const auto after = sharded.gather_weights(at::kFloat);
  int64_t num_wide_biases = 0;
  for (const auto& spec : parameter_specs(config)) {
    CAPTURE(spec.name);
    const bool is_bias = spec.name.ends_with("bias");
    num_wide_biases += is_bias && spec.shape.size() > 1;
    const double factor = is_bias || spec.shape.size() == 1 ? 1 : 1 - options.lr * options.weight_decay;
    CHECK(at::allclose(after.at(spec.name), weights.at(spec.name) * factor, 1e-6, 1e-8));
  }
  CHECK(num_wide_biases == 2 * config.num_hidden_layers);
}

}  // namespace troupe
