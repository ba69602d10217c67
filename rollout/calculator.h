// Environment "calculator": works out what the policy writes as calc(...), and ends where it writes none.
#pragma once

#include <optional>

#include "rollout/environment.h"

namespace troupe {

std::unique_ptr<Environment> make_calculator();

/// Value of + - * / and parentheses over decimal numbers, as text ("408", "0.125"). Throws Error saying what is wrong.
std::string calculate(const std::string& expression);
/// What stands in the text's last calc(...), parentheses paired; none where there is no such call.
std::optional<std::string> find_call(const std::string& text);

}  // namespace troupe
