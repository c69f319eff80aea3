"""What the checks share: requests from inside the guest, the judgement of a load, the simulated engines, the packages' places."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from guest import Guest

__all__ = [
    "CONFIG",
    "Load",
    "Packages",
    "chat",
    "engines_up",
    "install",
    "lost_of",
    "main_pid",
    "nothing_lost",
    "ready",
    "status",
]

Load: TypeAlias = dict[str, dict[str, Any]]
ENGINES = (50051, 50052)
CONFIG = """\
[engines]
worker_urls = ["grpc://127.0.0.1:50051", "grpc://127.0.0.1:50052"]
[server]
workers = 2
shutdown_grace_period_s = 20
"""
SIMULATED = "--protocol sglang --speed 0 --itl-ms 15 --tokens 120 --output text --text 'one two three four five six seven eight nine ten'"


class Packages:
    """Paths in the guest of the package under test, and of an earlier and a later one made from it."""

    now = "/opt/smg.deb"
    earlier = "/opt/smg-earlier.deb"
    later = "/opt/smg-later.deb"


def status(guest: Guest, path: str, *, port: int = 30000, flags: str = "", scheme: str = "http") -> str:
    """Gives the status of an answer, 000 when there is none."""
    return guest.run(f"curl -sk -m 5 -o /dev/null -w '%{{http_code}}' {flags} {scheme}://127.0.0.1:{port}{path}", check=False).strip()


def ready(guest: Guest, *, within_s: float, port: int = 30000) -> float:
    """Waits for readiness; gives the seconds."""
    script = f"test $(curl -s -m 5 -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{port}/readiness) = 200"
    return guest.wait(script, within_s=within_s, what="readiness 200")


def chat(guest: Guest, *, port: int = 30000, stream: bool = False, tokens: int = 5) -> str:
    """Gives the answer to a chat."""
    more = ',"stream":true,"ignore_eos":true' if stream else ""
    body = f'{{"model":"sim-model","messages":[{{"role":"user","content":"hi"}}],"max_tokens":{tokens}{more}}}'
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    return guest.run(f"curl -sSN -m 20 -H 'content-type: application/json' -d '{body}' {url}")


def lost_of(result: Load, *, kinds: Iterable[str] = ()) -> list[str]:
    """Gives every lost request in words."""
    return [text for name, kind in result.items() if not kinds or name in kinds for text in kind["lost"]]


def nothing_lost(result: Load) -> str:
    """Fails when a request was lost, or nobody asked; gives the numbers."""
    lost = lost_of(result)
    done = {name: kind["done"] for name, kind in result.items() if kind["connections"]}
    assert not lost, f"{len(lost)} lost, {done} answered: {lost[:6]}"
    assert done, "nobody asked"
    assert all(done.values()), f"a kind of client got no answer: {done}"
    slowest = max(kind["slowest_s"] for name, kind in result.items() if name != "stream")
    kinds = ", ".join(f"{count} {name}" for name, count in done.items())
    return f"0 lost of {sum(done.values())} ({kinds}); slowest short one {slowest:g} s"


def main_pid(guest: Guest, unit: str = "smg") -> str:
    """Gives the main process of a unit, which must run: `kill 0` would hit whoever asks."""
    pid = guest.run(f"systemctl show -P MainPID {unit}").strip()
    assert pid != "0", f"{unit} does not run"
    return pid


def install(guest: Guest, package: str) -> None:
    """Installs a package as an unattended upgrade does: edited conffiles are kept."""
    guest.run(f"dpkg -i --force-confdef --force-confold --force-unsafe-io {package}")


def engines_up(guest: Guest) -> None:
    """Starts two engines of another copy of the program, so that upgrades do not touch them."""
    guest.run("test -d /opt/engine || cp -a /usr/lib/smg /opt/engine")
    for port in ENGINES:
        command = f"/opt/engine/smg sim --port {port} {SIMULATED}"
        guest.run(f"systemctl is-active -q engine{port} || systemd-run -q --collect --unit=engine{port} {command}")
