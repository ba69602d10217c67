#!/usr/bin/env python3
"""What it costs to have two rollout workers in processes of their own: wall time of a small RL run (a million parameters) with two workers in its
own process, and with two that joined; they take turns. The first steps, in which workers join, do not count.
usage: bench/worker_processes.py TROUPE [--steps 150] [--repeats 3]"""
import argparse, json, pathlib, shutil, statistics, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "soak"))
import faults

SKIPPED = 20


def measure(troupe, num_processes, steps):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-bench-"))
    try:
        faults.write_job(folder, remote_reward=False)
        run = faults.Program("run", [troupe, "rl", str(folder / "run.toml"), f"--training.steps={steps}", f"--rollout.num_workers={2 - num_processes}",
                                     "--checkpoint.enable=false", "--checkpoint.last_save_in_hf=false"])
        address = run.wait_for(r"troupe worker --join (\S+)").match[1]
        workers = [faults.Program("worker", [troupe, "worker", "--join", address, "--threads", "1"]) for _ in range(num_processes)]
        for program in [run, *workers]:
            code = program.finish(limit=600)
            if code != 0:
                raise SystemExit(f"the {program.name} ended with {code}: {program.lines[-3:]}")
        times = [line["time_s"] for line in map(json.loads, open(folder / "run" / "metrics.jsonl")) if "loss/mean" in line]
        return times[-1] - times[SKIPPED - 1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    seconds = {0: [], 2: []}
    for _ in range(options.repeats):
        for num_processes in seconds:
            seconds[num_processes].append(measure(options.troupe, num_processes, options.steps))
    inside, outside = statistics.median(seconds[0]), statistics.median(seconds[2])
    print(json.dumps({"steps": options.steps - SKIPPED, "inside_s": round(inside, 3), "processes_s": round(outside, 3),
                      "extra": round(outside / inside - 1, 4)}))


if __name__ == "__main__":
    main()
