"""Checks of the package's life: installed, configured, upgraded, downgraded, removed."""

import time

from asking import CONFIG, Packages, chat, engines_up, install, main_pid, nothing_lost, ready, status
from guest import Guest

__all__ = [
    "boots_without_network",
    "conffile",
    "downgrade",
    "edited_conffile",
    "engines_come_late",
    "first_install",
    "purge",
    "stopped_stays_stopped",
    "upgrade",
]

EDIT = "# a line of the operator"
# Every file of the system but those of the package manager, the tests, and accounts, whose backups dpkg does not own.
LISTING = """\
find / -xdev \\( -path /var/lib/dpkg -o -path /var/log/journal -o -path /var/cache -o -path /tmp -o -path /root -o -path /opt \\
    -o -path /run \\) -prune -o -print \\
    | grep -vE '^/etc/(passwd|group|g?shadow|sub[ug]id)-?$|^/var/lib/systemd/|^/var/tmp/systemd-private' | sort"""


def first_install(guest: Guest) -> str:
    """On a fresh machine without network and without Python: dpkg -i, and it serves."""
    assert guest.run("command -v python3 || echo none").strip() == "none"
    guest.run(f"{LISTING} > /tmp/before")
    began = time.monotonic()
    install(guest, Packages.now)
    seconds = time.monotonic() - began
    assert guest.run("systemctl is-active smg; systemctl is-enabled smg").split() == ["active", "enabled"]
    assert status(guest, "/liveness") == "200", "active, and does not serve"
    return f"active and serving {seconds:.1f} s after dpkg -i; there is no Python"


def conffile(guest: Guest) -> str:
    """The conffile is what the program says its settings are."""
    guest.run("smg check && smg config --reference > /tmp/reference && tail -n +4 /etc/smg/smg.toml | diff - /tmp/reference")
    found = guest.run("stat -c '%a %U:%G' /etc/smg/smg.toml /etc/smg/credentials").split("\n")
    assert found[:2] == ["640 root:smg", "700 root:root"], found
    return f"every default is shown in /etc/smg/smg.toml; {guest.run('smg --version').strip()}"


def engines_come_late(guest: Guest) -> str:
    """Engines come after the gateway: 503 until then."""
    guest.write("/etc/smg/conf.d/engines.toml", CONFIG)
    guest.run("systemctl restart smg")
    assert status(guest, "/readiness") == "503"
    assert guest.run("smg doctor", check=False).count("nobody listens") == 2
    engines_up(guest)
    seconds = ready(guest, within_s=60)
    assert '"finish_reason"' in chat(guest)
    return f"active with readiness 503, and ready {seconds:.1f} s after the engines were started"


def upgrade(guest: Guest) -> str:
    """A later version, under load."""
    before = main_pid(guest)
    with guest.load() as result:
        install(guest, Packages.later)
    assert guest.run("dpkg-query -W -f '${Version}' smg").endswith("+later")
    assert main_pid(guest) != before
    return nothing_lost(result)


def downgrade(guest: Guest) -> str:
    """And back, under load."""
    with guest.load() as result:
        install(guest, Packages.now)
    assert not guest.run("dpkg-query -W -f '${Version}' smg").endswith("+later")
    return nothing_lost(result)


def boots_without_network(guest: Guest) -> str:
    """The first check of the second boot: what was enabled serves, with no interface but lo."""
    addresses = [line.split()[0] for line in guest.run("ip -br address").splitlines()]
    assert addresses == ["lo"], addresses
    assert status(guest, "/readiness") == "503"
    engines_up(guest)
    seconds = ready(guest, within_s=60)
    return f"served with lo alone, ready {seconds:.1f} s after the engines"


def edited_conffile(guest: Guest) -> str:
    """From an earlier version whose conffile differs: the operator's lines stay, the new file lies beside."""
    guest.run("dpkg -P smg")
    install(guest, Packages.earlier)
    guest.run(f"echo '{EDIT}' >> /etc/smg/smg.toml && chmod 0600 /etc/smg/smg.toml && chown smg: /etc/smg/smg.toml")
    guest.write("/etc/smg/conf.d/engines.toml", CONFIG)
    guest.run("systemctl restart smg")
    engines_up(guest)
    ready(guest, within_s=60)
    with guest.load() as result:
        install(guest, Packages.now)
    kept = guest.run("tail -n 1 /etc/smg/smg.toml; stat -c '%a %U' /etc/smg/smg.toml; ls /etc/smg; cat /etc/smg/conf.d/engines.toml")
    for word in (EDIT, "600 smg", "smg.toml.dpkg-dist", CONFIG.splitlines()[1]):
        assert word in kept, f"{word!r} is not in {kept!r}"
    return f"edit, owner and mode kept; {nothing_lost(result)}"


def stopped_stays_stopped(guest: Guest) -> str:
    """An upgrade starts nothing that the operator stopped."""
    guest.run("systemctl stop smg && systemctl disable smg 2> /dev/null")
    install(guest, Packages.later)
    states = guest.run("systemctl is-active smg; systemctl is-enabled smg", check=False).split()
    assert states == ["inactive", "disabled"], states
    return "inactive and disabled after an upgrade too"


def purge(guest: Guest) -> str:
    """Nothing stays of a running service."""
    guest.run("systemctl enable --now smg 2> /dev/null && systemctl start smg-sim@30060 && dpkg -P smg && systemctl daemon-reload")
    left = guest.run(f"{LISTING} > /tmp/after; diff /tmp/before /tmp/after", check=False).strip()
    assert not left, left
    assert guest.run("getent passwd smg || echo none").strip() == "none"
    assert not guest.run("pgrep -f '^/usr/(bin|lib)/smg'", check=False).strip()
    return "no file, no user, no process is left"
