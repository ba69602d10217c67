// Prompts for RL: an endless, seeded order over a data set. prompt id = epoch * size + index in that epoch's order
// (protocol).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct Prompt {
  uint64_t id = 0;
  std::vector<std::pair<std::string, std::string>> messages;  // (role, content)
  std::string metadata_json;                                  // the data's own fields, such as "answer"
};

struct PromptSourceOptions {
  std::string kind = "jsonl";  // "jsonl", "arithmetic"
  std::vector<std::string> paths;
  std::string prompt_field = "prompt", answer_field = "answer", system;
  uint64_t seed = 0;
  bool shuffle = true;
  bool skip_bad_lines = false;
  /// Share of the problems or records that training never sees, by a hash of their text (so that twins stay together
  /// and seeds do not matter). -1: 0.1 for arithmetic, 0 for files (an evaluation names its own file).
  double held_out_fraction = -1;
  bool held_out = false;  // true: draws from that share only (a file without one gives all its records)
  int64_t size = 0;       // arithmetic: number of problems in one epoch (0: 2^20, each id its own problem)
  int64_t num_digits = 2;
  std::string operators = "+";
  std::string template_text = "What is {a} {op} {b}? Answer with the number only.";
};

/// Any prompt by its id: nothing to save but the next id (B079, B080).
class PromptSource {
 public:
  virtual ~PromptSource() = default;
  virtual uint64_t size() const = 0;  // prompts in one epoch, > 0
  virtual Prompt at(uint64_t prompt_id) const = 0;
};

/// Throws Error: no file, no usable record (with counts and line numbers), unknown kind (lists the known ones).
std::unique_ptr<PromptSource> make_prompt_source(const PromptSourceOptions& options);

/// The seeded order of epoch `epoch`: position -> record, a permutation of 0..size-1 (Fisher-Yates with Philox stream
/// 2). Without `shuffle` as they stand.
std::vector<uint32_t> epoch_order(uint64_t seed, uint64_t epoch, uint32_t size, bool shuffle = true);

}  // namespace troupe
