"""Gateways as black boxes, for `real`: whose it is and a policy come in, the command of one that stands before some engines goes out."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.rig.processes import DIRECT
from smg.sim.processes import Child, ChildFailed, free_port, gateway_command
from smg.sim.train import MODEL_FOLDER

__all__ = ["OURS", "THEIRS", "command", "find_peer", "wait_engines"]

OURS, THEIRS = "ours", "theirs"
VERSION = "1.13.0"
WITHIN_S = 90.0


def find_peer() -> str:
    """Gives the path of the Rust original's program, where `bench/peers.sh` puts it or PEER says that it is; "" when it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = os.environ.get("PEER") or str(cache / "smg-bench" / f"smg-{VERSION}" / "bin" / "smg")
    return shutil.which(wanted) or ""


def command(whose: str, policy: str, *, port: int, engines: Sequence[str], peer: str) -> list[str]:
    """Gives the command. The original, too, follows KV events of its own accord, with cache_aware before engines of gRPC."""
    flags = ("--policy", policy, "--model-path", str(MODEL_FOLDER), "--log-level", "warn")
    if whose == OURS:
        return gateway_command(port=port, engines=engines, flags=flags)
    place = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()))
    return [peer, "launch", *place, "--worker-urls", *engines, *flags]


def wait_engines(gateway: Child, *, port: int, count: int) -> None:
    """Waits until a gateway says that it has so many healthy engines. Raises ChildFailed when it ends or does not say so in time."""
    end, said = time.monotonic() + WITHIN_S, "nothing"
    while time.monotonic() < end:
        gateway.check()
        try:
            with DIRECT.open(f"http://127.0.0.1:{port}/readiness", timeout=5) as reply:
                said = reply.read().decode()
        except OSError as error:
            said = str(error)
        if said.startswith("{") and json.loads(said).get("healthy_workers") == count:
            return
        time.sleep(0.1)
    raise ChildFailed(f"{gateway.name} has not {count} engines after {WITHIN_S:g} s ({said}):\n{gateway.output()[-2000:]}")
