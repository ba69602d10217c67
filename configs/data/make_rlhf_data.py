"""The made-up data of configs/rlhf-tiny.toml (the files beside this one are its output; seed 7).

The rule: an answer holds the three numbers of the prompt, each once; its score is the share of pairs that stand in
ascending order (0, 1/3, 2/3, 1), and 0 for other numbers. Of a preference pair both answers are orders of the same
numbers: they have the same length and the same tokens, and the first number alone does not decide either, for in half of
the pairs it is the same. Fine-tuning sees answers in random order (the right form, no skill). Two ways of asking are held
out from all training.
"""

import itertools
import json
import pathlib
import random

ASK = ["Sort from small to large: {}", "Put these numbers in ascending order: {}", "Arrange {} from the smallest to the largest.",
       "Order the numbers {}, smallest first.", "List {} in increasing order.", "Rank these from low to high: {}"]
ASK_HELD_OUT = ["Write {} again, beginning with the smallest.", "What is the ascending order of {}?"]
FOLDER = pathlib.Path(__file__).parent


def rule(numbers, answer):
    if sorted(numbers) != sorted(answer):
        return 0.0
    pairs = list(itertools.combinations(answer, 2))
    return sum(a < b for a, b in pairs) / len(pairs)


def text(numbers):
    return ", ".join(map(str, numbers))


def write(name, records):
    (FOLDER / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def main():
    random.seed(7)
    seen = set()

    def fresh():
        while True:
            numbers = random.sample(range(10, 100), 3)
            if frozenset(numbers) not in seen:
                seen.add(frozenset(numbers))
                return numbers

    def ask(ways, numbers):
        return random.choice(ways).format(text(numbers))

    def pair(ways):
        numbers = fresh()
        orders = list(itertools.permutations(numbers))
        same_first = random.random() < 0.5
        while True:
            better, worse = random.sample(orders, 2)
            if rule(numbers, better) > rule(numbers, worse) and (better[0] == worse[0]) == same_first:
                return {"prompt": ask(ways, numbers), "chosen": text(better), "rejected": text(worse)}

    def prompt(ways):
        numbers = fresh()
        return {"prompt": ask(ways, numbers), "numbers": numbers}

    def chat():
        numbers = fresh()
        return {"prompt": ask(ASK, numbers), "completion": text(random.sample(numbers, 3))}

    write("rlhf-chats.jsonl", [chat() for _ in range(480)])
    write("rlhf-preferences.jsonl", [pair(ASK) for _ in range(2400)])
    write("rlhf-preferences-held-out.jsonl", [pair(ASK_HELD_OUT) for _ in range(200)])
    write("rlhf-prompts.jsonl", [prompt(ASK) for _ in range(1200)])
    write("rlhf-prompts-held-out.jsonl", [prompt(ASK_HELD_OUT) for _ in range(100)])


if __name__ == "__main__":
    main()
