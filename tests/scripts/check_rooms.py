#!/usr/bin/env python3
"""Holds the rooms: includes go only downwards, and each third-party library stays in its room. --self-test shows that it can fail."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAY_INCLUDE = {
    "base": {"base"},
    "models": {"models", "base"},
    "parallel": {"parallel", "models", "base"},
    "training": {"training", "parallel", "models", "base"},
    "rollout": {"rollout", "parallel", "models", "base"},
    "actors": {"actors", "training", "rollout", "parallel", "models", "base"},
    "apps": {"apps", "actors", "training", "rollout", "parallel", "models", "base"},
}
LIBRARIES = [  # pattern of the include, where it may stand, what to say
    (r"caf/|zmq", r"^(actors|tests/actors)/", "CAF and ZeroMQ only in actors/"),
    (r"torch/csrc/distributed|gloo/", r"^(parallel|tests/parallel)/", "c10d only in parallel/"),
    (r"spdlog/|fmt/", r"^base/log\.cpp$", "spdlog only in base/log.cpp"),
    (r"doctest", r"^tests/", "doctest only in tests/"),
    (r"doctest/doctest\.h", r"^tests/(doctest\.h|main\.cpp)$", "doctest only through tests/doctest.h"),
    (r"toml\+\+|CLI/", r"^apps/", "TOML and the command line only in apps/"),
]
LIMITS = {".h": 600, ".cpp": 600, ".cu": 600}


def room_of(path):
    parts = path.split("/")
    if parts[0] == "tests" and len(parts) > 2:
        return parts[1]
    return parts[0]


def check(path, text):
    """Complaints about one file."""
    found = []
    room = room_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match:
            continue
        include = match.group(1)
        target = include.split("/")[0]
        if room in MAY_INCLUDE and target in MAY_INCLUDE and target not in MAY_INCLUDE[room]:
            found.append(f"{path}:{number}: {room}/ must not include {include}")
        for pattern, place, what in LIBRARIES:
            if re.match(pattern, include) and not re.match(place, path):
                found.append(f"{path}:{number}: {include}: {what}")
    lines = text.count("\n")
    limit = LIMITS.get(os.path.splitext(path)[1])
    if limit and lines > limit and "Longer than" not in text[:2000]:
        found.append(f"{path}: {lines} lines, over {limit} (say why at its top: \"Longer than ...\")")
    return found


def self_test():
    bad = {
        "training/x.cpp": '#include "rollout/engine.h"\n',
        "models/x.cpp": '#include "parallel/collectives.h"\n',
        "rollout/x.cpp": "#include <caf/all.hpp>\n",
        "models/y.cpp": "#include <torch/csrc/distributed/c10d/Store.hpp>\n",
        "base/x.cpp": "#include <spdlog/spdlog.h>\n",
        "tests/base/x.cpp": "#include <doctest/doctest.h>\n",
        "tests/training/x.cpp": '#include "actors/director.h"\n',
        "base/long.cpp": "int x;\n" * 601,
    }
    for path, text in bad.items():
        if not check(path, text):
            print(f"self-test: {path} should have been refused")
            return 1
    good = {"actors/x.cpp": '#include <caf/all.hpp>\n#include "training/learner.h"\n', "tests/actors/x.cpp": '#include "tests/doctest.h"\n'}
    for path, text in good.items():
        if check(path, text):
            print(f"self-test: {path} should have been accepted: {check(path, text)}")
            return 1
    print(f"rooms self-test: {len(bad)} faults are found")
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    files = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if not files:
        print("no files to check")
        return 1
    complaints = []
    for path in files:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            complaints += check(path, file.read())
    print("\n".join(complaints) if complaints else f"rooms: {len(files)} files are well")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
