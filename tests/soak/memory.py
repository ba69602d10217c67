#!/usr/bin/env python3
"""B123: a small RL run of 2,000 steps, one worker of its own and one of another process, does not grow.

The resident memory of the run (metrics.jsonl) and of the worker (/proc) over the last fifth of the steps may stand above that of the second tenth by 5 %
and 8 MiB at most: what a run keeps per step would be more.
usage: tests/soak/memory.py TROUPE [--steps 2000]
"""
import argparse, json, os, pathlib, shutil, statistics, sys, tempfile, threading

import faults

GROWTH, SLACK = 0.05, 8 << 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-memory-"))
    faults.write_job(folder, remote_reward=False)
    run = faults.Program("run", [options.troupe, "rl", str(folder / "run.toml"), f"--training.steps={options.steps}", "--rollout.num_workers=1",
                                 "--checkpoint.interval=100"])
    worker = None
    try:
        address = run.wait_for(r"troupe worker --join (\S+)").match[1]
        worker = faults.Program("worker", [options.troupe, "worker", "--join", address, "--threads", "1", "--heartbeat-s", "0.2"])
        of_worker, done = [], threading.Event()

        def watch():
            while not done.wait(0.5):
                try:
                    pages = int(pathlib.Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1])
                    of_worker.append(pages * os.sysconf("SC_PAGE_SIZE"))
                except OSError:
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        code = run.finish(limit=3600)
        done.set()
        watcher.join()
        code_of_worker = worker.finish()
        for who, program, its_code in (("run", run, code), ("worker", worker, code_of_worker)):
            if its_code != 0:
                raise faults.Hang(f"the {who} ended with {its_code}: {program.lines[-3:]}")
    finally:
        for program in [run, worker]:
            if program is not None and program.is_alive():
                program.kill()
                program.process.wait()
    of_run = [line["memory/resident(GiB)"] * (1 << 30) for line in map(json.loads, open(folder / "run" / "metrics.jsonl")) if "memory/resident(GiB)" in line]
    failed = 0
    for who, memory in (("run", of_run), ("worker", of_worker)):
        n = len(memory)
        before, after = statistics.median(memory[n // 10:n // 5]), statistics.median(memory[-(n // 5):])
        grew = after > before * (1 + GROWTH) + SLACK
        failed += grew
        print(f"B123 {who}: {before / 2**20:.1f} MiB in the second tenth of {options.steps} steps, {after / 2**20:.1f} MiB in the last fifth{': GROWS' if grew else ''}")
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
