"""Checks of what goes wrong: processes killed or hung, a full disk, a clock that jumps."""

import time

from asking import chat, lost_of, main_pid, nothing_lost, ready
from guest import Guest

__all__ = ["clock_jumps", "disk_full", "killed_children", "killed_main", "watchdog"]

# Clients that ask at the same time, each of which may lose the request that a killed process was answering.
CLIENTS = 16
DROP_IN = "/run/systemd/system/smg.service.d"


def killed_main(guest: Guest) -> str:
    """kill -9: what it answers is lost, and nobody is refused."""
    before = main_pid(guest)
    with guest.load("--idle", "0") as result:
        guest.run(f"kill -9 {before}")
        script = f"test $(systemctl show -P SubState smg) = running && test $(systemctl show -P MainPID smg) != {before}"
        seconds = guest.wait(script, within_s=60, what="running again")
    lost = lost_of(result)
    assert not [text for text in lost if "Refused" in text], lost
    assert len(lost) <= CLIENTS, lost
    return f"running again after {seconds:.1f} s; none refused, {len(lost)} under way were cut"


def killed_children(guest: Guest) -> str:
    """kill -9 of control process and workers: each is replaced, and the service is not restarted."""
    before, told = main_pid(guest), []
    for name in ("smg:control", "smg:worker-1", "smg:worker-2"):
        victim = guest.run(f"pgrep -x {name}").split()[0]
        with guest.load("--idle", "0", settle_s=0.7) as result:
            guest.run(f"kill -9 {victim}")
            guest.wait(f"pgrep -x {name} | grep -qvx {victim}", within_s=60, what=f"another {name}")
        lost = lost_of(result)
        assert not [text for text in lost if "Refused" in text], lost
        assert len(lost) <= (0 if name == "smg:control" else CLIENTS), lost
        told.append(f"{name.removeprefix('smg:')} {len(lost)}")
    assert main_pid(guest) == before
    return f"replaced, the main process stays; none refused, cut were: {', '.join(told)}"


def watchdog(guest: Guest) -> str:
    """A main process that hangs is ended and started again; one that lives is not."""
    guest.write(f"{DROP_IN}/watchdog.conf", "[Service]\nWatchdogSec=2\n")
    guest.run("systemctl daemon-reload && systemctl restart smg")
    try:
        before = main_pid(guest)
        time.sleep(4)
        assert main_pid(guest) == before, "it was restarted although it lives"
        guest.run(f"kill -STOP {before}")
        script = f"test $(systemctl show -P SubState smg) = running && test $(systemctl show -P MainPID smg) != {before}"
        seconds = guest.wait(script, within_s=60, what="started again")
    finally:
        guest.run(f"rm -r {DROP_IN}; systemctl daemon-reload; systemctl restart smg")
    assert "finish_reason" in chat(guest)
    return f"with WatchdogSec=2 it serves again {seconds:.1f} s after it hung"


def disk_full(guest: Guest) -> str:
    """No byte left where state and logs are: it starts, serves, reloads."""
    places = ("/var/lib/smg", "/var/log/smg")
    guest.run("systemctl stop smg")
    for place in places:
        guest.run(
            f"mount -t tmpfs -o size=64k tmpfs {place} && chown smg: {place}; dd if=/dev/zero of={place}/full bs=1k count=100 2> /dev/null",
            check=False,
        )
        assert guest.run(f"df --output=avail {place} | tail -n 1").strip() == "0"
    guest.write("/etc/smg/conf.d/log.toml", '[logging]\nlog_dir = "/var/log/smg"\n')
    try:
        guest.run("systemctl start smg")
        ready(guest, within_s=60)
        assert "finish_reason" in chat(guest)
        guest.run("systemctl reload smg")
        guest.wait("test $(systemctl show -P SubState smg) = running", within_s=60, what="the reload is over")
        assert "finish_reason" in chat(guest)
    finally:
        guest.run(f"rm /etc/smg/conf.d/log.toml; systemctl stop smg; umount {' '.join(places)}; systemctl start smg")
    return "starts, serves and reloads with no space for state and logs"


def clock_jumps(guest: Guest) -> str:
    """The clock goes two days forward and three back while it serves. A container has the machine's clock, so a library tells another."""
    library = guest.run("ls /usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1").strip()
    variables = f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE=/run/faketime FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
    guest.write(f"{DROP_IN}/clock.conf", f"[Service]\nEnvironment={variables}\nMemoryDenyWriteExecute=no\n")
    guest.run("echo +0 > /run/faketime && systemctl daemon-reload && systemctl restart smg")
    before, days = main_pid(guest), []
    try:
        with guest.load() as result:
            for offset in ("+2d", "-1d"):
                guest.run(f"echo {offset} > /run/faketime")
                time.sleep(2)
                days.append(guest.run("curl -sS -o /dev/null -D - http://127.0.0.1:30000/liveness | grep -i '^date:'"))
        assert main_pid(guest) == before
        for day, words in zip(days, ("2 days", "-1 day"), strict=True):
            expected = guest.run(f"LC_ALL=C date -u -d '{words}' '+%d %b'").strip()
            assert expected in day, f"the service did not see the jump: {day}"
    finally:
        guest.run(f"rm -r {DROP_IN}; systemctl daemon-reload; systemctl restart smg")
    return f"2 days forward, 3 back: {nothing_lost(result)}"
