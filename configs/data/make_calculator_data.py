"""The made-up chats of configs/calculator.toml (calculator-chats.jsonl is this program's output; seed 11).

In half of them the assistant asks the calculator and repeats what it says; in the other half it answers at once, as a model
does that has no tool. RL then finds out which of the two pays.
"""

import json
import pathlib
import random


def main():
    random.seed(11)
    lines = []
    for i in range(320):
        a, b = random.randint(10, 99), random.randint(10, 99)
        chat = [{"role": "user", "content": f"What is {a} * {b}?"}]
        if i % 2 == 0:
            chat += [{"role": "assistant", "content": f"calc({a}*{b})"}, {"role": "tool", "content": str(a * b)}]
        chat.append({"role": "assistant", "content": str(a * b)})
        lines.append(json.dumps({"messages": chat}) + "\n")
    (pathlib.Path(__file__).parent / "calculator-chats.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
