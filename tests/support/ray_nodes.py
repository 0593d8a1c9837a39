"""A Ray cluster of two nodes, in a network and a process namespace of its own: nobody else can reach it, and all of it
ends with this program. Told a folder, it prints what came out as JSON. Started by test_ray.py with unshare.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HEAD, SECOND, PORT = "127.0.0.2", "127.0.0.3", 6380
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]


def start(name: str, *words: str) -> "subprocess.Popen[bytes]":
    """Start a node, with its output in a file, which is shown if the node does not come."""
    with Path(f"{name}.log").open("wb") as log:
        return subprocess.Popen([*RAY, *words], stdout=log, stderr=log)


def said(name: str) -> str:
    """What a node has written so far."""
    return f"the {name} never came: {Path(f'{name}.log').read_text()[-1500:]}"


def below(pid: int) -> list[int]:
    """A process and all that came from it."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(found for file in tasks for child in file.read_text().split() for found in below(int(child)))]


def keeper(pid: int) -> int:
    """The raylet of a node."""
    while True:
        for found in below(pid):
            if Path(f"/proc/{found}/comm").read_text().strip() == "raylet":
                return found
        time.sleep(0.1)


def answers() -> bool:
    """Whether the head listens."""
    with socket.socket() as line:
        return line.connect_ex((HEAD, PORT)) == 0


def wait_for_nodes(count: int) -> None:
    """Until the cluster has so many."""
    import ray

    deadline = time.monotonic() + 300
    while not answers():
        assert time.monotonic() < deadline, said("head")
        time.sleep(0.5)
    ray.init(address=os.environ["RAY_ADDRESS"], logging_level="ERROR", log_to_driver=False)
    while sum(node["Alive"] for node in ray.nodes()) < count:
        assert time.monotonic() < deadline, said("second")
        time.sleep(0.2)
    ray.shutdown()


def kill_when_busy(node: int, sign: Path) -> None:
    """The second node dies as by a power cut, with a client's work on it."""
    while not sign.exists():
        time.sleep(0.05)
    for pid in below(node):
        os.kill(pid, signal.SIGKILL)


def stranger() -> tuple[int, str]:
    """Somebody without the token tries to run something; what comes of it."""
    command = [sys.executable, "-m", "atoll", "run", "fedavg", "--rounds", "1", "--backend", "ray", "--out", "stranger"]
    env = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path("wrong").absolute())}
    Path("wrong").write_text("f" * 64)
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stderr


def main(folder: Path) -> dict[str, Any]:
    from atoll.engine.build import run_experiment
    from support.ray_witness import Witness
    from support.small_runs import setup

    def outcome(name: str, backend: str, **more: Any) -> tuple[str, int]:
        (folder / name).mkdir()
        made = setup("ditto", backend=backend)
        method = Witness(made.method.optim, folder=str(folder / name), **more)
        return run_experiment(replace(made, method=method)).summary["digest"], len(list((folder / name).iterdir()))

    there = tempfile.mkdtemp(prefix="r", dir="/tmp")  # names of sockets must be short
    start("head", "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--num-cpus=1", "--include-dashboard=false",
          f"--temp-dir={there}")  # fmt: skip
    os.environ["RAY_ADDRESS"] = f"{HEAD}:{PORT}"
    wait_for_nodes(1)  # a node that finds no head gives up
    second = start("second", f"--address={HEAD}:{PORT}", f"--node-ip-address={SECOND}", "--num-cpus=1")
    try:
        wait_for_nodes(2)
        told: dict[str, Any] = {"loop": outcome("loop", "loop")[0], "both": outcome("both", "ray")}
        told["stranger"] = stranger()
        doomed = keeper(second.pid)
        threading.Thread(target=kill_when_busy, args=(second.pid, folder / "killed" / str(doomed))).start()
        told["killed"] = outcome("killed", "ray", hang=doomed)
    finally:
        shutil.rmtree(there, ignore_errors=True)
    return told


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    place = Path(sys.argv[1])
    os.chdir(place)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(place / "token")}
    (place / "token").write_text(os.urandom(32).hex())
    (place / "token").chmod(0o600)
    print(json.dumps(main(place)), flush=True)
