"""A reward of one's own: the share of vowels among a completion's letters.

[[reward]]
kind = "remote"
command = "PYTHONPATH=python python3 examples/python/vowel_reward.py"
"""

from troupe_reward import serve


def score(item):
    letters = [c for c in item["completion"].lower() if c.isalpha()]
    if not letters:
        raise ValueError("the completion has no letter")  # a failed reward, counted and left out: never a silent 0
    return sum(c in "aeiou" for c in letters) / len(letters)


serve(score)
