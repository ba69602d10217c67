"""A task of reasoning-gym (https://pypi.org/project/reasoning-gym) as data and reward of configs/reasoning-gym.toml.

    pip install reasoning-gym pyzmq
    python3 examples/python/reasoning_gym_task.py write chain_sum 2000 runs/reasoning-gym.jsonl
    python3 examples/python/reasoning_gym_task.py write chain_sum 100 runs/reasoning-gym-held-out.jsonl 1

Called without arguments it is the reward: reasoning-gym's own verifier grades the completion (0..1).
"""

import functools
import json
import pathlib
import sys

import reasoning_gym
from troupe_reward import serve


def write(task, size, path, seed=0):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lines:
        for entry in reasoning_gym.create_dataset(task, size=int(size), seed=int(seed)):
            record = {"prompt": entry["question"], "answer": entry["answer"], "task": task, "entry": entry}
            lines.write(json.dumps(record, default=str) + "\n")


@functools.lru_cache
def verifier(task):
    return reasoning_gym.create_dataset(task, size=1, seed=0)


def score(item):
    metadata = item["metadata"]
    return float(verifier(metadata["task"]).score_answer(item["completion"].strip(), metadata["entry"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(*sys.argv[2:])
    else:
        serve(score)
