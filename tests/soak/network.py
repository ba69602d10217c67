#!/usr/bin/env python3
"""Workers behind a bad network: a run in this network namespace, two workers in one of their own, a virtual cable between them.

  cut for 5 s      shorter than cluster.lost_after_s: nobody is lost, the run trains on
  cut for 60 s     both are lost within cluster.lost_after_s and some, and join anew once the cable is whole
  5 % loss         of the packets of either direction (iptables)
  100 ms delay     of either direction (netem where the kernel has it, else a proxy in the workers' namespace)

Each ends with the journal of faults.py: every sample trained once. Needs root, `ip netns`, and iptables (but for the delay); what lacks one of them
is skipped by name, before anything is started.
usage: tests/soak/network.py TROUPE [--only cut5,cut60,loss,delay]        exit code 0 where all that could be played holds, and there was something
"""
import argparse, os, pathlib, shutil, signal, subprocess, sys, tempfile, time

import faults

NAMESPACE, OUTSIDE, INSIDE = "troupe-soak", "10.211.7.1", "10.211.7.2"
PORT, WEIGHTS_PORT = 17431, 17432
LOST_AFTER_S, HEARTBEAT_S = 10.0, 1.0
FOUND_WITHIN_S = LOST_AFTER_S + HEARTBEAT_S + 3  # and some, on a busy machine


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.returncode == 0


def inside(*command, check=True):
    return run("ip", "netns", "exec", NAMESPACE, *command, check=check)


class Cable:
    """The namespace, and what is done to the packets in it."""

    def __enter__(self):
        self.remove()
        run("ip", "netns", "add", NAMESPACE)
        run("ip", "link", "add", "troupe0", "type", "veth", "peer", "name", "troupe1", "netns", NAMESPACE)
        run("ip", "address", "add", OUTSIDE + "/30", "dev", "troupe0")
        run("ip", "link", "set", "troupe0", "up")
        inside("ip", "address", "add", INSIDE + "/30", "dev", "troupe1")
        inside("ip", "link", "set", "troupe1", "up")
        inside("ip", "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        run("ip", "link", "del", "troupe0", check=False)
        run("ip", "netns", "del", NAMESPACE, check=False)

    def drop(self, add, *match):
        for chain, option in (("INPUT", "-i"), ("OUTPUT", "-o")):
            inside("iptables", "-A" if add else "-D", chain, option, "troupe1", *match, "-j", "DROP")


class DelayingProxy:
    """Carries both ports over the cable, each direction `delay_s` late, the order kept. It lives in the workers' namespace."""

    SOURCE = """
import asyncio, sys
delay = float(sys.argv[1])
async def carry(reader, writer):
    queue = asyncio.Queue()
    async def late():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - asyncio.get_running_loop().time()))
            if not data:
                writer.close(); return
            writer.write(data); await writer.drain()
    task = asyncio.create_task(late())
    try:
        while True:
            data = await reader.read(1 << 16)
            await queue.put((asyncio.get_running_loop().time() + delay, data))
            if not data: break
    except OSError:
        await queue.put((0, b''))
    await task
async def main():
    async def serve(port):
        async def connected(reader, writer):
            try:
                far_reader, far_writer = await asyncio.open_connection(sys.argv[2], port)
            except OSError:
                writer.close(); return
            await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer), return_exceptions=True)
        return await asyncio.start_server(connected, '127.0.0.1', port)
    servers = [await serve(int(port)) for port in sys.argv[3:]]
    print('ready', flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))
asyncio.run(main())
"""

    def __enter__(self):
        self.process = subprocess.Popen(["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", self.SOURCE, "0.1", OUTSIDE, str(PORT), str(WEIGHTS_PORT)],
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise OSError("the delaying proxy did not start")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Stage:
    """A run and two workers; ended whatever happens."""

    def __init__(self, troupe, folder, worker_host):
        faults.write_job(folder, remote_reward=False)
        (folder / "token").write_text("sesame\n")
        self.folder = folder
        self.run = faults.Program("run", [
            troupe, "rl", str(folder / "run.toml"), f"--cluster.bind={OUTSIDE}", f"--cluster.port={PORT}", f"--cluster.weights_port={WEIGHTS_PORT}",
            f"--cluster.token_file={folder}/token", f"--cluster.heartbeat_s={HEARTBEAT_S}", f"--cluster.lost_after_s={LOST_AFTER_S}",
            "--cluster.wait_for_workers_s=200"])
        self.workers = []
        try:
            self.run.wait_for("workers may join")
            for number in range(2):
                self.workers.append(faults.Program(f"worker {number}", [
                    "ip", "netns", "exec", NAMESPACE, troupe, "worker", "--join", f"{worker_host}:{PORT}", "--token-file", str(folder / "token"),
                    "--threads", "1", "--retry-s", "150", "--lost-after-s", str(LOST_AFTER_S)]))
            for worker in self.workers:
                worker.wait_for("joined the run")
            self.steps(3)
        except Exception:
            self.kill()
            raise

    def steps(self, count, limit=faults.HANG_S):
        begin = self.run.mark()
        for _ in range(count):
            begin = self.run.wait_for(r"\bstep \d+/", begin, limit).after

    def says(self, part, begin):
        with self.run.changed:
            return any(part in line for _, line in self.run.lines[begin:])

    def end(self):
        self.run.kill(signal.SIGINT)
        if self.run.finish() != 130:
            raise faults.Hang("the run did not end with 130")
        for worker in self.workers:
            if worker.finish() != 0:
                raise faults.Hang(f"{worker.name} did not end with 0")
        problems, steps, trained, given_up = faults.check_journal(self.folder)
        if problems:
            raise faults.Hang("; ".join(problems))
        return f"{steps} steps, {trained} samples trained once, {given_up} given up"

    def kill(self):
        for program in [self.run, *self.workers]:
            if program.is_alive():
                program.kill()
                program.process.wait()


def cut(stage, cable, seconds):
    mark = stage.run.mark()
    begin = time.monotonic()
    cable.drop(True)
    if seconds > LOST_AFTER_S:
        after = mark
        for number in range(len(stage.workers)):
            found = stage.run.wait_for(" is lost: ", after, limit=begin + FOUND_WITHIN_S - time.monotonic())
            after = found.after
            print(f"  found lost after {found.when - begin:.1f} s")
    marks = [(worker, worker.mark()) for worker in stage.workers]
    time.sleep(max(0, seconds - (time.monotonic() - begin)))
    cable.drop(False)
    whole = time.monotonic()
    if seconds > LOST_AFTER_S:
        for worker, worker_mark in marks:
            worker.wait_for("joined the run", worker_mark, limit=100)
        print(f"  joined again {time.monotonic() - whole:.1f} s after the cable was whole")
    stage.steps(1)
    print(f"  trains on {time.monotonic() - whole:.1f} s after the cable was whole")
    stage.steps(3)
    if seconds < LOST_AFTER_S and stage.says(" is lost: ", mark):
        raise faults.Hang(f"a worker was lost by a cut of {seconds} s")


def what_is_missing(name):
    """Why this cannot be played here; "" where it can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ["ip"] + (["iptables"] if name != "delay" else []):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    try:
        with Cable():
            if name != "delay":
                inside("iptables", "-L", "-n")
    except OSError as error:
        return str(error)
    return ""


def play(name, troupe, cable):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-network-"))
    stage = proxy = None
    try:
        has_netem = name != "delay" or run("tc", "qdisc", "add", "dev", "troupe0", "root", "netem", "delay", "100ms", check=False)
        if name == "delay" and has_netem:
            inside("tc", "qdisc", "add", "dev", "troupe1", "root", "netem", "delay", "100ms")
        if name == "delay" and not has_netem:
            proxy = DelayingProxy().__enter__()
        if name == "loss":
            cable.drop(True, "-m", "statistic", "--mode", "random", "--probability", "0.05")
        stage = Stage(troupe, folder, "127.0.0.1" if proxy else OUTSIDE)
        begin = time.monotonic()
        if name in ("cut5", "cut60"):
            cut(stage, cable, int(name[3:]))
        else:
            stage.steps(20, limit=120)
            print(f"  {20 / (time.monotonic() - begin):.1f} steps a second")
        print(f"{name}: {stage.end()}", flush=True)
        return True
    except faults.Hang as hang:
        print(f"PROBLEM: {name}: {hang}")
        for program in ([stage.run, *stage.workers] if stage else []):
            print(f"--- {program.name}, last lines:")
            for _, line in program.lines[-12:]:
                print("   ", line)
        return False
    finally:
        if stage:
            stage.kill()
        if proxy:
            proxy.__exit__()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("troupe")
    parser.add_argument("--only", default="cut5,cut60,loss,delay")
    options = parser.parse_args()
    failed = played = 0
    for name in options.only.split(","):
        missing = what_is_missing(name)
        if missing:
            print(f"{name}: skipped: {missing}")
            continue
        played += 1
        try:
            with Cable() as cable:
                failed += not play(name, os.path.abspath(options.troupe), cable)
        except OSError as error:
            failed += 1
            print(f"PROBLEM: {name}: {error}")
    if played == 0:
        print("PROBLEM: nothing could be played here")
    return 1 if failed or played == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
