#!/usr/bin/env python3
"""Kills the processes of a small RL run at random moments and checks that nothing is lost, doubled, hung or resumed wrongly.

One run of a model of about a million parameters without workers of its own, two processes that generate and two that grade. Each fault strikes at a random moment; the
next one waits until the run trains again. What is checked:

  - after every fault the run trains on within a limit, else it hangs (everybody's last lines are printed);
  - every resume begins at the newest whole checkpoint that was there when the run fell;
  - at the end journal.jsonl: steps without a gap, every sample of every group in order of admission exactly once, trained or given up with
    its reason, every token within the staleness bound, the counters of metrics.jsonl in agreement;
  - Ctrl-C ends the run with 130 and its workers with 0;
  - from 50 kills on: at least one resume went on with samples that workers had begun.

--kills counts strikes with SIGKILL (of one process or of several at once); what is frozen or interrupted between them does not count.
usage: tests/soak/faults.py TROUPE [--kills 200] [--seed 1] [--folder F]       exit code 0 where all of it holds
"""
import argparse, collections, ctypes, json, os, pathlib, random, re, shutil, signal, statistics, subprocess, sys, tempfile, threading, time

HANG_S = 60            # nothing here takes so long, also on a busy machine
LOST_AFTER_S = 2.0
GROUPS, SAMPLES, LAG = 8, 8, 1  # groups a step, samples a group, steps that samples may lag


LONG_FORM = 50         # kills


class Hang(Exception):
    pass


Found = collections.namedtuple("Found", "when match after")  # after: where the search for the next one begins


LIBC = ctypes.CDLL(None)


def die_with_parent():
    """In the child: who ends this script by force leaves nobody behind."""
    PR_SET_PDEATHSIG = 1
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A child whose lines are kept, with the time each came."""

    def __init__(self, name, arguments):
        self.name, self.lines, self.changed = name, [], threading.Condition()
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                        env=environment, preexec_fn=die_with_parent)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self.changed.notify_all()
        with self.changed:
            self.lines.append((time.monotonic(), "(end of output)"))
            self.changed.notify_all()

    def mark(self):
        with self.changed:
            return len(self.lines)

    def wait_for(self, pattern, begin=0, limit=HANG_S):
        """The first line at or after `begin` that holds the pattern."""
        wanted, deadline = re.compile(pattern), time.monotonic() + limit
        with self.changed:
            while True:
                for i in range(begin, len(self.lines)):
                    found = wanted.search(self.lines[i][1])
                    if found:
                        return Found(self.lines[i][0], found, i + 1)
                begin = len(self.lines)
                ended = begin > 0 and self.lines[-1][1] == "(end of output)"
                left = deadline - time.monotonic()
                if ended or left <= 0 or not self.changed.wait(left):
                    raise Hang(f"{self.name}: no line with '{pattern}'" + (" before its end" if ended else f" within {limit} s"))

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def finish(self, limit=HANG_S):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Hang(f"{self.name}: does not end within {limit} s")
        self.reader.join(10)
        return code

    def is_alive(self):
        return self.process.poll() is None


def write_job(folder, remote_reward=True):
    """Model description, tokenizer, prompts and configuration: two letters, the first is the answer."""
    model = folder / "model"
    model.mkdir(parents=True)
    letters = "abcdefgh"
    vocabulary = {"<|end|>": 0, **{c: i + 1 for i, c in enumerate(letters + ":.,!?-+")}}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (model / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16, "hidden_size": 128, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "initializer_range": 0.02,
        "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float32"}))
    (model / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "added_tokens": [{"id": 0, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True}],
        "model": {"type": "BPE", "unk_token": None, "vocab": vocabulary, "merges": []}}))
    (folder / "train.jsonl").write_text("".join(
        json.dumps({"prompt": a + b + ":", "answer": a}) + "\n" for a in letters for b in letters))
    (folder / "run.toml").write_text(f"""
[run]
name = "faults"
folder = "{folder}/run"
[model]
path = "{model}"
random_init = true
[data]
kind = "jsonl"
paths = ["{folder}/train.jsonl"]
[training]
steps = 1000000
max_context_length = 64
[async_loop]
num_prompts_per_train_step = {GROUPS}
num_samples_per_prompt = {SAMPLES}
target_offpolicy_steps = {LAG}
[sampling]
max_new_tokens = 16
[rollout]
num_workers = 0
dtype = "float32"
[algorithm]
zero_variance = "keep"
[[reward]]
kind = "exact"
[checkpoint]
interval = 2
keep_latest_k = 3
[cluster]
listen = true
heartbeat_s = 0.2
lost_after_s = {LOST_AFTER_S}
wait_for_workers_s = 50
[metrics]
console = "plain"
""" + ("""[[topology.place]]
role = "reward"
where = "remote"
""" if remote_reward else ""))


class Soak:
    def __init__(self, troupe, folder, seed):
        self.troupe, self.folder, self.random = troupe, folder, random.Random(seed)
        self.run = self.address = None
        self.workers, self.graders, self.number = [], [], 0
        self.recovery = collections.defaultdict(list)  # what was measured -> seconds
        self.bad_resumes, self.num_resumes, self.num_went_on, self.num_kills, self.events = [], 0, 0, 0, []

    # -- people on the stage

    def start_run(self):
        arguments = [self.troupe, "rl", str(self.folder / "run.toml")]
        if self.address:
            arguments.append("--cluster.port=" + self.address.rsplit(":", 1)[1])
        expected = self.newest_checkpoint()
        self.run = Program("run", arguments)
        self.address = self.run.wait_for(r"troupe worker --join (\S+)").match[1]
        resumed = next((re.search(r"resuming after step (\d+)", line) for _, line in self.run.lines if "resuming after step" in line), None)
        got = int(resumed[1]) if resumed else 0
        self.num_went_on += any("samples go on where they were" in line for _, line in self.run.lines)
        if expected is not None:
            self.num_resumes += 1
        if got != (expected or 0):
            self.bad_resumes.append(f"resumed after step {got}, the newest whole checkpoint was of step {expected}")

    def start_worker(self, role="rollout"):
        self.number += 1
        worker = Program(f"{role} worker {self.number}", [
            self.troupe, "worker", "--join", self.address, "--role", role, "--threads", "1", "--heartbeat-s", "0.2", "--lost-after-s",
            str(LOST_AFTER_S), "--retry-s", str(HANG_S)])
        (self.workers if role == "rollout" else self.graders).append(worker)
        return worker

    def start_all_workers(self):
        for worker in [self.start_worker(role) for role in ("rollout", "rollout", "reward", "reward")]:
            worker.wait_for("joined the run")

    def everybody(self):
        return self.workers + self.graders

    def newest_checkpoint(self):
        """As a resume has to find it: a folder exists once its manifest does."""
        folder = self.folder / "run" / "checkpoints"
        steps = [int(m[1]) for p in (folder.iterdir() if folder.exists() else [])
                 if (m := re.fullmatch(r"step-(\d+)", p.name)) and (p / "manifest.json").exists()]
        return max(steps, default=None)

    def wait_for_steps(self, count, begin=None):
        """The time at which so many more steps are trained."""
        begin = self.run.mark() if begin is None else begin
        when = None
        for _ in range(count):
            when, _, begin = self.run.wait_for(r"\bstep \d+/", begin)
        return when

    def measure(self, what, seconds):
        self.recovery[what].append(seconds)

    # -- faults: each returns once the run trains on

    def worker_fault(self, strike, name, found_by, victims=None):
        victim = self.random.choice(victims or self.workers)
        mark, begin = self.run.mark(), time.monotonic()
        strike(victim)
        self.measure(f"{name}: found", self.run.wait_for(found_by, mark).when - begin)
        mark = self.run.mark()
        return victim, begin, mark

    def replace(self, victim):
        victim.finish()
        role = "rollout" if victim in self.workers else "reward"
        (self.workers if role == "rollout" else self.graders).remove(victim)
        self.start_worker(role).wait_for("joined the run")

    def worker_killed(self):
        victim, begin, mark = self.worker_fault(lambda w: w.kill(), "worker killed", r" is lost: ")
        self.measure("worker killed: next step", self.wait_for_steps(1, mark) - begin)
        self.replace(victim)

    def grader_killed(self):
        victim, begin, mark = self.worker_fault(lambda w: w.kill(), "grader killed", r" is lost: ", self.graders)
        self.measure("grader killed: next step", self.wait_for_steps(1, mark) - begin)
        self.replace(victim)

    def all_graders_killed(self):
        begin, victims = time.monotonic(), list(self.graders)
        for victim in victims:
            victim.kill()
        for victim in victims:
            self.replace(victim)
        self.measure("all graders killed: next step", self.wait_for_steps(1) - begin)

    def grader_frozen(self):
        victim, begin, mark = self.worker_fault(lambda w: w.kill(signal.SIGSTOP), "grader frozen", r" is lost: ", self.graders)
        self.measure("grader frozen: next step", self.wait_for_steps(1, mark) - begin)
        mark = victim.mark()
        victim.kill(signal.SIGCONT)
        victim.wait_for("joined the run", mark)

    def worker_interrupted(self):
        victim, begin, mark = self.worker_fault(lambda w: w.kill(signal.SIGINT), "worker interrupted", r" leaves: ")
        code = victim.finish()
        if code != 130:
            raise Hang(f"an interrupted worker ended with {code}")
        self.measure("worker interrupted: next step", self.wait_for_steps(1, mark) - begin)
        self.replace(victim)

    def worker_frozen(self):
        victim, begin, mark = self.worker_fault(lambda w: w.kill(signal.SIGSTOP), "worker frozen", r" is lost: ")
        self.measure("worker frozen: next step", self.wait_for_steps(1, mark) - begin)
        if self.random.random() < 0.5:
            victim.kill(signal.SIGKILL)
            self.replace(victim)
        else:
            mark, begin = victim.mark(), time.monotonic()
            victim.kill(signal.SIGCONT)
            self.measure("worker thawed: joined again", victim.wait_for("joined the run", mark).when - begin)

    def worker_paused(self):
        """Shorter than what makes it lost: nothing may happen to it."""
        victim = self.random.choice(self.workers)
        mark = self.run.mark()
        victim.kill(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, LOST_AFTER_S / 4))
        victim.kill(signal.SIGCONT)
        self.wait_for_steps(1, mark)

    def all_workers_killed(self):
        mark, begin = self.run.mark(), time.monotonic()
        victims = list(self.workers)
        for victim in victims:
            victim.kill()
        for _ in victims:
            mark = self.run.wait_for(r" is lost: ", mark).after
        for victim in victims:
            self.replace(victim)
        self.measure("all workers killed: next step", self.wait_for_steps(1) - begin)

    def resume_after(self, name, begin):
        marks = [(worker, worker.mark()) for worker in self.everybody()]
        self.start_run()
        self.measure(f"{name}: next step", self.wait_for_steps(1, 0) - begin)
        for worker, mark in marks:
            worker.wait_for("joined the run", mark)

    def run_killed(self):
        begin = time.monotonic()
        self.run.kill()
        self.run.finish()
        self.resume_after("run killed", begin)

    def run_killed_while_saving(self):
        folder, deadline = self.folder / "run" / "checkpoints", time.monotonic() + HANG_S
        while not any(p.endswith(".partial") for p in (os.listdir(folder) if folder.exists() else [])):
            if time.monotonic() > deadline or not self.run.is_alive():
                raise Hang("run: no checkpoint is being written")
            time.sleep(0.001)
        begin = time.monotonic()
        self.run.kill()
        self.run.finish()
        self.resume_after("run killed while saving", begin)

    def run_and_workers_killed(self):
        begin = time.monotonic()
        for program in [self.run, *self.everybody()]:
            program.kill()
        for program in [self.run, *self.everybody()]:
            program.finish()
        self.workers.clear()
        self.graders.clear()
        self.start_run()
        self.start_all_workers()
        self.measure("everybody killed: next step", self.wait_for_steps(1, 0) - begin)

    def run_frozen(self):
        """Workers take it for lost and look for it; thawed, it takes them for lost and lets them in again."""
        marks = [(worker, worker.mark()) for worker in self.everybody()]
        self.run.kill(signal.SIGSTOP)
        for worker, mark in marks:
            worker.wait_for("is lost", mark)
        begin = time.monotonic()
        self.run.kill(signal.SIGCONT)
        for worker, worker_mark in marks:
            worker.wait_for("joined the run", worker_mark)
        mark = self.run.mark()
        self.measure("run thawed: next step", self.wait_for_steps(1, mark) - begin)

    def run_interrupted(self):
        begin = time.monotonic()
        self.run.kill(signal.SIGINT)
        code = self.run.finish()
        if code != 130:
            raise Hang(f"an interrupted run ended with {code}")
        for worker in self.everybody():  # they are told that it is over
            if worker.finish() != 0:
                raise Hang(f"{worker.name} of an interrupted run did not end with 0")
        self.workers.clear()
        self.graders.clear()
        self.measure("run interrupted: saved and ended", time.monotonic() - begin)
        self.start_run()
        self.start_all_workers()
        self.wait_for_steps(1, 0)

    # With how often each strikes.
    FAULTS = {worker_killed: 5, run_killed: 4, worker_frozen: 2, run_killed_while_saving: 5, worker_interrupted: 2, grader_killed: 4,
              run_and_workers_killed: 3, all_graders_killed: 2, run_interrupted: 2, run_frozen: 1, all_workers_killed: 2, grader_frozen: 2,
              worker_paused: 2}
    KILLS = (worker_killed, run_killed, run_killed_while_saving, grader_killed, run_and_workers_killed, all_graders_killed, all_workers_killed)

    def play(self, kills):
        self.start_run()
        self.start_all_workers()
        self.wait_for_steps(3)
        # Every kind once, then those that cost little time more often.
        kinds = list(self.FAULTS)
        self.random.shuffle(kinds)
        while self.num_kills < kills:
            fault = kinds.pop() if kinds else self.random.choices(list(self.FAULTS), list(self.FAULTS.values()))[0]
            self.wait_for_steps(self.random.randint(0, 2))
            time.sleep(self.random.uniform(0, 0.15))  # any moment of a step
            self.events.append(fault.__name__)
            begin = time.monotonic()
            fault(self)
            self.num_kills += fault in self.KILLS
            print(f"fault {len(self.events)}, kill {self.num_kills} of {kills}: {fault.__name__.replace('_', ' ')}: trains on after "
                  f"{time.monotonic() - begin:.1f} s", flush=True)
        self.wait_for_steps(1)
        self.run.kill(signal.SIGINT)
        if self.run.finish() != 130:
            raise Hang("the run did not end with 130 at Ctrl-C")
        for worker in self.everybody():
            if worker.finish() != 0:
                raise Hang(f"{worker.name} did not end with 0 after the run")

    def end_all(self):
        for program in [self.run, *self.everybody()]:
            if program is not None and program.is_alive():
                program.kill(signal.SIGKILL)
                program.process.wait()

    def last_words(self):
        for program in [self.run, *self.everybody()]:
            if program is not None:
                print(f"--- {program.name}, last lines:")
                for _, line in program.lines[-12:]:
                    print("   ", line)


def check_journal(folder, lag=LAG):
    """What is wrong with the books of the run; and how many samples were trained, given up."""
    problems = []
    lines = [json.loads(line) for line in (folder / "run" / "journal.jsonl").read_text().splitlines()]
    if [line["step"] for line in lines] != list(range(1, len(lines) + 1)):
        problems.append(f"journal.jsonl: its steps are not 1 to {len(lines)}, each once")
    seen, trained, given_up = collections.Counter(), 0, 0
    for line in lines:
        for sample in line["samples"]:
            trained += 1
            seen[sample["id"]] += 1
            oldest = min(version for _, version in sample["versions"])
            if oldest < line["step"] - 1 - lag:
                problems.append(f"step {line['step']}: sample {sample['id']} holds tokens of version {oldest}, more than {lag} older than it")
        lost = list(line["given_up"]) + [sample for group in line["dropped"] for sample in group["given_up"]]
        for sample in lost:
            given_up += 1
            seen[sample["id"]] += 1
            if not sample.get("reason"):
                problems.append(f"sample {sample['id']} was given up without a reason")
        for group in line["dropped"]:
            for sample in group["samples"]:
                seen[sample["id"]] += 1
    doubled = [sample for sample, count in seen.items() if count > 1]
    expected = {(group << 12) + k for group in range(len(lines) * GROUPS) for k in range(SAMPLES)}
    lost, strange = expected - set(seen), set(seen) - expected
    if doubled:
        problems.append(f"{len(doubled)} samples stand in the journal twice, the first {min(doubled)}")
    if lost:
        problems.append(f"{len(lost)} samples are missing, the first {min(lost)}")
    if strange:
        problems.append(f"{len(strange)} samples have no business in it, the first {min(strange)}")
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in metrics if "loss/mean" in line]
    if steps != list(range(1, len(lines) + 1)):
        problems.append("metrics.jsonl: its steps are not those of the journal")
    if metrics and metrics[-1].get("rollout/num_given_up", 0) != given_up:
        problems.append(f"metrics.jsonl counts {metrics[-1].get('rollout/num_given_up')} samples that were given up, the journal {given_up}")
    return problems, len(lines), trained, given_up


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="kept; default: a temporary one")
    options = parser.parse_args()
    folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="troupe-faults-"))
    begin = time.monotonic()
    write_job(folder)
    soak = Soak(os.path.abspath(options.troupe), folder, options.seed)
    problems = []
    try:
        soak.play(options.kills)
    except Hang as hang:
        problems.append(f"fault {len(soak.events)} ({soak.events[-1] if soak.events else 'start'}): {hang}")
        soak.last_words()
    finally:
        soak.end_all()
    problems += soak.bad_resumes
    if not problems and options.kills >= LONG_FORM and soak.num_went_on == 0:
        problems.append(f"none of {soak.num_resumes} resumes went on with samples that had been begun")
    if not problems:
        more, steps, trained, given_up = check_journal(folder)
        problems += more
        print(f"{len(soak.events)} faults, {soak.num_kills} of them kills, {soak.num_resumes} resumes ({soak.num_went_on} with samples that go on), "
              f"{steps} steps, {trained} samples trained once, {given_up} given up with a reason, in {time.monotonic() - begin:.0f} s")
    for kind, count in sorted(collections.Counter(soak.events).items()):
        print(f"  {count:4d} x {kind.replace('_', ' ')}")
    print("recovery (seconds: median, longest, of how many)")
    for what, seconds in sorted(soak.recovery.items()):
        print(f"  {what:42s} {statistics.median(seconds):6.2f} {max(seconds):6.2f} {len(seconds):5d}")
    for problem in problems:
        print("PROBLEM:", problem)
    if not options.folder and not problems:
        shutil.rmtree(folder, ignore_errors=True)
    elif problems:
        print("run folder:", folder / "run")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
