"""Checks of the running service: what it answers, how it is confined, reloads and restarts under load, keys, instances."""

import time

from asking import chat, main_pid, nothing_lost, ready
from commands import INSTANCE
from guest import Guest

__all__ = [
    "doctor",
    "hardening",
    "instances",
    "journal",
    "reload",
    "restart",
    "socket_unit",
    "stop_drains",
    "streams",
    "wrong_reload",
]

UNITS = ("smg.service", "smg.socket", "smg@.service", "smg-sim@.service")


def streams(guest: Guest) -> str:
    """A chat, whole and streamed."""
    assert '"finish_reason"' in chat(guest)
    answer = chat(guest, stream=True)
    assert answer.rstrip().endswith("data: [DONE]"), answer
    return f"{answer.count('data: ')} events"


def doctor(guest: Guest) -> str:
    """It finds the running gateway and both engines well."""
    told = guest.run("smg doctor")
    unit, events = "smg.service 200 s", "KV events of grpc://127.0.0.1:50051: the running gateway"
    for words in ("nothing is wrong", "a gateway answers on 0.0.0.0:30000", "its template renders", unit, events):
        assert words in told, told
    return told.strip().splitlines()[-1]


def hardening(guest: Guest) -> str:
    """The units as systemd sees them, and the process as the kernel does."""
    guest.run(f"systemd-analyze verify --man=no {' '.join('/usr/lib/systemd/system/' + unit for unit in UNITS)}")
    score = float(guest.run("systemd-analyze security --no-pager smg.service | grep Overall | grep -oE '[0-9]+[.][0-9]'"))
    assert score <= 1.5, score
    facts = guest.run(f"cat /proc/{main_pid(guest)}/status")
    for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in facts, facts
    assert guest.run(f"stat -c %U /proc/{main_pid(guest)}").strip() == "smg"
    return f"systemd-analyze security: {score:g}; user smg, no capability, seccomp"


def journal(guest: Guest) -> str:
    """Lines have priorities, and no time of their own."""
    lines = guest.run("journalctl -u smg -o cat --no-pager")
    assert "listening on" in lines, lines
    assert not [line for line in lines.splitlines() if line.startswith(("<", "20"))], lines
    warnings = guest.run("journalctl -u smg -o cat -p warning --no-pager")
    assert "engine check failed" in warnings, warnings
    assert "listening on" not in warnings, warnings
    return "priorities, and one time a line"


def reload(guest: Guest) -> str:
    """Two reloads under load: every process is replaced but the main one."""
    before, workers = main_pid(guest), guest.run("pgrep smg:worker").split()
    with guest.load() as result:
        for _ in range(2):
            guest.run("systemctl reload smg")
            guest.wait("test $(systemctl show -P SubState smg) = running", within_s=60, what="the reload is over")
            time.sleep(0.5)
    assert main_pid(guest) == before
    guest.wait(f"! pgrep smg:worker | grep -qxE '{'|'.join(workers)}'", within_s=60, what="the old workers are gone")
    return nothing_lost(result)


def wrong_reload(guest: Guest) -> str:
    """A wrong file fails the reload and changes nothing."""
    guest.write("/etc/smg/conf.d/wrong.toml", "[server]\nnonsense = 1\n")
    try:
        told = guest.run("systemctl reload smg 2>&1 && echo worked", check=False)
    finally:
        guest.run("rm /etc/smg/conf.d/wrong.toml")
    assert "worked" not in told
    assert "server.nonsense" in guest.run("journalctl -u smg -o cat -n 5 --no-pager")
    assert "finish_reason" in chat(guest)
    return "refused with its reason in the journal, and the service goes on"


def restart(guest: Guest) -> str:
    """Three restarts under load."""
    with guest.load() as result:
        for _ in range(3):
            guest.run("systemctl restart smg")
            time.sleep(1)
    return f"3 restarts: {nothing_lost(result)}"


def socket_unit(guest: Guest) -> str:
    """With smg.socket also a stopped service refuses nobody: the next connection starts it."""
    guest.run("systemctl stop smg && systemctl start smg.socket && systemctl start smg")
    try:
        with guest.load() as result:
            guest.run("systemctl restart smg")
            time.sleep(1)
            guest.run("systemctl stop smg 2> /dev/null")
        assert guest.run("systemctl is-active smg").strip() == "active"
    finally:
        guest.run("systemctl stop smg.socket smg; systemctl start smg")
    return f"a restart and a stop: {nothing_lost(result)}"


def stop_drains(guest: Guest) -> str:
    """A stream that runs when the service is told to stop comes to its end."""
    body = '{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":110,"stream":true,"ignore_eos":true}'
    ask = f"curl -sSN -m 20 -H 'content-type: application/json' -d '{body}' http://127.0.0.1:30000/v1/chat/completions"
    told = guest.run(
        f"{ask} > /tmp/stream 2>&1 & sleep 0.5; systemctl stop smg; date +%s.%N; wait; tail -n 2 /tmp/stream; systemctl show -P Result smg"
    )
    guest.run("systemctl start smg")
    assert "data: [DONE]" in told, told
    assert told.strip().endswith("success"), told
    return "its stream came to its end, result success"


def instances(guest: Guest) -> str:
    """A second gateway beside the first, in front of a simulated engine of the package."""
    guest.write("/etc/smg/instances/two/smg.toml", INSTANCE)
    guest.run("systemctl start smg-sim@30060 smg@two")
    try:
        ready(guest, within_s=60, port=30100)
        assert "finish_reason" in chat(guest, port=30100)
        guest.run("systemctl reload smg@two")
        with guest.load("--port", "30100", "--stream", "0", settle_s=1) as result:
            guest.run("systemctl restart smg@two")
    finally:
        guest.run("systemctl stop smg@two smg-sim@30060; rm -r /etc/smg/instances/two")
    return f"smg@two: restart: {nothing_lost(result)}"
