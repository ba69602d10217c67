// The one list of families.
#include <algorithm>

#include "base/error.h"
#include "models/families/family.h"

namespace troupe {

const Family& llama_family();
const Family& mistral_family();
const Family& qwen2_family();
const Family& qwen3_family();
const Family& smollm3_family();
const Family& olmo3_family();
const Family& gemma3_family();
const Family& mixtral_family();
const Family& qwen3_moe_family();
const Family& gpt_oss_family();
const Family& glm4_moe_family();
const Family& deepseek_v3_family();
const Family& llama4_family();
const Family& qwen3_next_family();
const Family& qwen3_5_family();
const Family& qwen3_5_moe_family();

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> list = {
      &llama_family(),     &mistral_family(),    &qwen2_family(),    &qwen3_family(),
      &smollm3_family(),   &olmo3_family(),      &gemma3_family(),   &mixtral_family(),
      &qwen3_moe_family(), &gpt_oss_family(),    &glm4_moe_family(), &deepseek_v3_family(),
      &llama4_family(),    &qwen3_next_family(), &qwen3_5_family(),  &qwen3_5_moe_family()};
  return list;
}

const Family& find_family(const std::string& model_type) {
  std::string known;
  for (const Family* family : families()) {
    const auto& types = family->model_types;
    if (family->name == model_type || std::find(types.begin(), types.end(), model_type) != types.end()) return *family;
    known += (known.empty() ? "" : ", ") + family->name;
  }
  fail("config.json: model_type \"", model_type, "\" is not known; known are ", known);
}

}  // namespace troupe
