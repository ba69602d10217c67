// Parameter counts of published models, from the list of parameters alone: configs/models holds their configurations'
// essentials. The counts are those of what the checkpoints hold; transformers, which keeps the bias of the choice of
// experts as a buffer, counts deepseek-v3, kimi-k2 and both glm-4.5 without that number an expert.
#include <fstream>

#include "models/config.h"
#include "tests/doctest.h"

using namespace troupe;

TEST_CASE("published models have their published number of parameters, from 0.3 B to 1 T") {
  const std::pair<const char*, int64_t> published[] = {
      {"llama-3.2-1b", 1235814400},    {"llama-3.1-405b", 405853388800},   {"mistral-7b", 7241732096},
      {"qwen2.5-0.5b", 494032768},     {"qwen3-0.6b", 596049920},          {"smollm3-3b", 3075098624},
      {"olmo-3-7b", 7298011136},       {"gemma-3-270m", 268098176},        {"gemma-3-27b", 27009346304},
      {"mixtral-8x7b", 46702792704},   {"qwen3-30b-a3b", 30532122624},     {"qwen3-235b-a22b", 235093634560},
      {"gpt-oss-20b", 20914757184},    {"gpt-oss-120b", 116829156672},     {"glm-4.5-air", 106852251264},
      {"glm-4.5", 352797829024},       {"deepseek-v3", 671026419200},      {"kimi-k2", 1026408232448},
      {"llama-4-scout", 107769861120}, {"llama-4-maverick", 400711848960}, {"qwen3-next-80b-a3b", 79674391296},
  };
  for (const auto& [name, count] : published) {
    CAPTURE(name);
    std::ifstream file(std::string(TROUPE_SOURCE_DIR "/configs/models/") + name + "/config.json");
    CHECK(parse_model_config(nlohmann::json::parse(file)).num_parameters() == count);
  }
}
