"""The true rule of configs/rlhf-tiny.toml: the share of the answer's pairs in ascending order; 0 for other numbers."""

import itertools
import re

from troupe_reward import serve


def score(item):
    wanted = item["metadata"]["numbers"]
    given = [int(number) for number in re.findall(r"\d+", item["completion"])]
    if sorted(given) != sorted(wanted):
        return 0.0
    pairs = list(itertools.combinations(given, 2))
    return sum(a < b for a, b in pairs) / len(pairs)


serve(score)
