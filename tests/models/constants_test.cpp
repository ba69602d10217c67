// What is not trained (the bias by which DeepSeek-V3's routers choose) stays in fp32 among bf16 weights.
#include "models/blocks/router.h"
#include "models/decoder.h"
#include "models/formats/checkpoint_reader.h"
#include "tests/doctest.h"
#include "tests/models/family_folders.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("a router under bf16 chooses by its fp32 bias") {
  at::manual_seed(4);
  MoeConfig moe;
  moe.num_experts = 8;
  moe.num_experts_per_token = 2;
  moe.score = RouterScore::kSigmoid;
  moe.normalise = true;
  const Tensor x = at::randn({64, 16}).to(at::kBFloat16), weight = (at::randn({8, 16}) * 1e-4).to(at::kBFloat16);
  // Scores are nearly alike: the bias decides, by differences that bf16 does not have.
  const Tensor bias = 1 + at::tensor({3.0, 1.0, 7.0, 5.0, 2.0, 8.0, 4.0, 6.0}, at::kFloat) * 5e-4;
  CHECK(at::equal(bias.to(at::kBFloat16).to(at::kFloat).narrow(0, 0, 2), at::ones({2})));
  const auto chosen = [&](const Tensor& tokens, const Tensor& of_router, const Tensor& by) {
    return std::get<0>(blocks::route(tokens, {of_router, Tensor(), by}, moe).experts_TK.sort(1));
  };
  const Tensor wanted = chosen(x.to(at::kFloat), weight.to(at::kFloat), bias);
  CHECK(at::equal(chosen(x, weight, bias), wanted));
  CHECK_FALSE(at::equal(chosen(x, weight, bias.to(at::kBFloat16)), wanted));
}

TEST_CASE("biases of the choice are read, computed with and written in fp32 beside bf16 weights") {
  for (const char* name : {"deepseek_v3", "glm4_moe"}) {
    CAPTURE(name);
    const auto reader = open_checkpoint(testing::family_fixtures() / name);
    const auto exact = load_weights(*reader, at::kFloat), narrow = load_weights(*reader, at::kBFloat16);
    int64_t num_constants = 0;
    for (const auto& spec : parameter_specs(reader->config())) {
      CAPTURE(spec.name);
      CHECK((narrow.at(spec.name).scalar_type() == (spec.is_trained ? at::kBFloat16 : at::kFloat)));
      if (spec.is_trained) continue;
      ++num_constants;
      CHECK(at::equal(narrow.at(spec.name), exact.at(spec.name)));
    }
    CHECK(num_constants > 0);
    Decoder decoder(reader->config());
    decoder.bind_all(narrow);
    const Tensor hidden = decoder.forward(at::arange(20, at::kLong), PackedLayout{{{0, 20, -1}}, 20});
    CHECK((hidden.scalar_type() == at::kBFloat16));
    CHECK(hidden.isfinite().all().item<bool>());

    const TemporaryFolder folder;
    write_hf_folder(folder / "model", reader->config(), exact, at::kBFloat16, nullptr);
    const auto again = open_checkpoint(folder / "model");
    for (const auto& spec : parameter_specs(reader->config())) {
      CHECK(again->tensors().at(spec.name).dtype == (spec.is_trained ? "BF16" : "F32"));
    }
    for (const auto& [tensor_name, tensor] : load_weights(*again, at::kBFloat16)) {
      CAPTURE(tensor_name);
      CHECK(at::equal(tensor, narrow.at(tensor_name)));
    }
  }
}
