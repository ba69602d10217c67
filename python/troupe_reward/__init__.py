"""Rewards and environments for Troupe, in a process of their own.

    from troupe_reward import serve

    def score(item):
        return float(item["completion"].count("e"))

    serve(score)

Troupe starts such a program itself ([[reward]] kind = "remote", command = "python3 my_reward.py") or connects to one
that runs elsewhere (address = "tcp://HOST:PORT"). docs/remote.md says what an item holds and what goes over the wire.
"""

import json
import math
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import zmq

__all__ = ["Environment", "serve", "serve_environment"]
PROTOCOL = 1


def serve(score, address=None, threads=8):
    """Answers score(item) -> number for ever. Raise to say why there is no value.

    item["completion"] is the text, item["metadata"] the data's own fields (with "messages", the prompt).
    address: "tcp://127.0.0.1:5555", "ipc:///tmp/reward.sock"; default: what Troupe says (TROUPE_ADDRESS).
    threads: items scored at a time; more than one calls `score` from several threads.
    """

    def answer(op, item):
        if op != "score":
            raise ValueError(f"this process gives rewards, it does not know {op!r}")
        return {"value": _number(score(item), "value")}

    _serve(answer, address, threads)


class Environment:
    """One episode of a multi-turn environment; derive, and pass the class to serve_environment."""

    def reset(self, item):
        """Called once, before the first turn; item["metadata"] holds the data's own fields (and "messages")."""

    def step(self, text):
        """The policy's turn -> (reply, reward, done). reply: a text (role "tool"), or a list of messages
        {"role", "content"}; not used where done is true."""
        raise NotImplementedError


def serve_environment(make, address=None, threads=8, max_episodes=65536):
    """Answers the turns of episodes for ever; make() -> Environment. Of more than max_episodes the oldest go."""
    episodes, lock = OrderedDict(), threading.Lock()

    def answer(op, item):
        key = item["episode"]
        if op == "reset":
            episode = make()
            episode.reset(item)
            with lock:
                episodes[key] = episode
                while len(episodes) > max_episodes:
                    episodes.popitem(last=False)
            return {}
        if op != "step":
            raise ValueError(f"this process is an environment, it does not know {op!r}")
        with lock:
            episode = episodes.get(key)
        if episode is None:
            raise KeyError(f"no episode {key}: this process was restarted, or had too many")
        reply, reward, done = episode.step(item["text"])
        if done:
            with lock:
                episodes.pop(key, None)
        if isinstance(reply, str):
            reply = [{"role": "tool", "content": reply}]
        return {"messages": reply or [], "reward": _number(reward, "reward"), "done": bool(done)}

    _serve(answer, address, threads)


def _number(value, name):
    number = float(value)  # raises on None and on texts that are no number
    if isinstance(value, str):
        raise TypeError(f"the {name} is a text, {value!r}")
    if not math.isfinite(number):
        raise ValueError(f"the {name} is {number}")
    return number


def _serve(answer, address, threads):
    address = address or os.environ.get("TROUPE_ADDRESS")
    if not address:
        raise SystemExit('troupe_reward: no address: start it from Troupe, or say serve(..., address="tcp://127.0.0.1:5555")')
    context = zmq.Context.instance()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(address)
    results = context.socket(zmq.PULL)
    results.bind("inproc://troupe-results")
    local = threading.local()

    def work(peer, words, deadline):
        if not hasattr(local, "socket"):
            local.socket = context.socket(zmq.PUSH)
            local.socket.connect("inproc://troupe-results")
        items = []
        for item in words.get("items", []):
            try:
                if time.monotonic() > deadline:
                    raise TimeoutError("it was too late before it began")
                items.append(answer(words.get("op"), item))
            except Exception as error:  # the item's failure, told with its reason; the process goes on
                items.append({"error": f"{type(error).__name__}: {error}"})
        reply = {"protocol": PROTOCOL, "id": words.get("id"), "items": items}
        local.socket.send_multipart([peer, json.dumps(reply).encode()])

    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(results, zmq.POLLIN)
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        while True:
            ready = dict(poller.poll())
            if results in ready:
                router.send_multipart(results.recv_multipart())
            if router in ready:
                peer, head, *_ = router.recv_multipart()
                try:
                    words = json.loads(head)
                    limit = words.get("deadline_ms", 10_000) / 1000
                except (ValueError, AttributeError, TypeError):
                    continue  # whoever sent this does not speak the protocol
                pool.submit(work, peer, words, time.monotonic() + limit)
    except KeyboardInterrupt:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
