// A reward of one's own: a completion scores by how much of it reads the same backwards.
//
// Registering the kind makes it usable from a configuration ([[reward]] kind = "palindrome"). This program registers
// it, grades two samples and prints the scores: it should say "abcba 1" and "abcde 0.2".
#include <cctype>
#include <iostream>

#include "rollout/reward.h"

namespace {

class PalindromeReward : public troupe::RewardFunction {
 public:
  double score(const troupe::Trajectory& trajectory, const nlohmann::json&) const override {
    std::string letters;
    for (const unsigned char c : trajectory.completion_text) {
      if (std::isalpha(c)) letters += static_cast<char>(std::tolower(c));
    }
    if (letters.empty()) throw std::runtime_error("the completion has no letter");  // a failed reward, not a silent 0
    size_t equal = 0;
    for (size_t i = 0; i < letters.size(); ++i) equal += letters[i] == letters[letters.size() - 1 - i];
    return static_cast<double>(equal) / static_cast<double>(letters.size());
  }
};

std::unique_ptr<troupe::RewardFunction> make_palindrome_reward(const troupe::RewardOptions&) {
  return std::make_unique<PalindromeReward>();
}

}  // namespace

int main() {
  troupe::register_reward_kind("palindrome", &make_palindrome_reward);
  troupe::RewardOptions options;
  options.kind = options.name = "palindrome";
  troupe::RewardSet rewards({options});
  for (const char* text : {"abcba", "abcde"}) {
    troupe::Trajectory sample;
    sample.completion_text = text;
    rewards.score(sample);
    std::cout << text << " " << sample.total_reward.value() << "\n";
  }
}
