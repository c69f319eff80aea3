"""The check that runs, in an installed system, every command that README.md and the manual page show to operators."""

import pathlib

from asking import CONFIG, Packages, engines_up, install, ready
from guest import Guest
from shown import manual_commands, readme_commands, run_in_guest

__all__ = ["INSTANCE", "shown_commands"]

README = pathlib.Path(__file__).parents[3] / "README.md"
# Its engine's port is under 32768: from there on the kernel gives them to connections, and one may have it when the engine starts.
INSTANCE = """\
[server]
port = 30100
workers = 1
[metrics]
prometheus_port = 29100
[engines]
worker_urls = ["grpc://127.0.0.1:30060"]
"""
PLACE = """\
mkdir -p /opt/checkout/dist && cp /opt/tls/* /opt/checkout
ln -f {package} /opt/checkout/dist/smg_0_amd64.deb"""
# What must be so before a command, and what is done after it so that the next finds what it needs; by a part of the command.
BEFORE = {
    "smg-sim@50051": "systemctl stop engine50051",
    "curl ": "systemctl is-active smg",
}
AFTER = {
    "smg-sim@50051": "systemctl is-active smg-sim@50051 && systemctl stop smg-sim@50051",
    "tls.key": "systemctl restart smg && curl -skf https://127.0.0.1:30000/liveness && rm /etc/smg/credentials/* && systemctl restart smg",
    "conf.d/keys.toml": "systemctl reload smg && rm /etc/smg/keys /etc/smg/conf.d/keys.toml && systemctl restart smg",
    ">> /etc/smg/credentials/api-keys": "systemctl restart smg && rm -f /etc/smg/credentials/* && systemctl restart smg",
    "enable --now smg@NAME": "systemctl is-active smg@two && systemctl disable --now smg@two",
    "smg.socket; systemctl start": "systemctl is-active smg.socket && systemctl disable --now smg.socket && systemctl restart smg",
}


def shown_commands(guest: Guest) -> str:
    """As they stand there, with this machine in place of the engine's."""
    page = guest.run("zcat /usr/share/man/man1/smg.1.gz")
    commands = list(dict.fromkeys([*readme_commands(README.read_text(encoding="utf-8")), *manual_commands(page)]))
    guest.run(PLACE.format(package=Packages.later))
    guest.write("/etc/smg/instances/two/smg.toml", INSTANCE)
    ran = 0
    try:
        for command, script in run_in_guest(commands):
            guest.run("systemctl reset-failed")  # all these starts are more than a unit may have in a minute
            _each(guest, BEFORE, command)
            guest.run(script)
            _each(guest, AFTER, command)
            engines_up(guest)
            ready(guest, within_s=60)
            ran += 1
    finally:
        install(guest, Packages.now)
        guest.run("rm -rf /etc/smg/credentials/* /etc/smg/instances/two /opt/checkout; systemctl reset-failed")
        guest.write("/etc/smg/conf.d/engines.toml", CONFIG)
        guest.run("systemctl restart smg")
        ready(guest, within_s=60)
    return f"{ran} of {len(commands)} commands work as they stand there; the others run elsewhere"


def _each(guest: Guest, scripts: dict[str, str], command: str) -> None:
    for part, script in scripts.items():
        if part in command:
            guest.run(script)
