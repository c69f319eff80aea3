"""Checks of keys and certificates: from the folder that root alone reads, and from a file that the service may read itself."""

from asking import nothing_lost, status
from guest import Guest

__all__ = ["keys_and_tls", "rotated_keys"]

FOLDER = "/etc/smg/credentials"
OWN = "/etc/smg/keys"
ASK = '-H \'content-type: application/json\' -d \'{"model":"sim-model","prompt":"a"}\' -H \'authorization: Bearer %s\''


def answers(guest: Guest, *keys: str, scheme: str = "http") -> list[str]:
    """Gives the status of a request with each key."""
    return [status(guest, "/v1/tokenize", scheme=scheme, flags=ASK % key) for key in keys]


def keys_and_tls(guest: Guest) -> str:
    """Keys and certificate from the folder that root alone reads."""
    guest.write(f"{FOLDER}/api-keys", "first-key\nsecond-key\n", mode=0o600)
    guest.run(f"for kind in crt key; do install -m 0600 /opt/tls/server.$kind {FOLDER}/tls.$kind; done; systemctl restart smg")
    try:
        seen = answers(guest, "first-key", "second-key", "wrong", scheme="https")
        assert seen == ["200", "200", "401"], seen
        assert (
            guest.run("curl -sS -o /dev/null --cacert /opt/tls/server.crt https://127.0.0.1:30000/liveness && echo fine").strip() == "fine"
        )
        guest.run("systemctl reload smg")
        with guest.load("--tls", "--key", "second-key", settle_s=1) as result:
            guest.run("systemctl restart smg")
    finally:
        guest.run(f"rm {FOLDER}/*; systemctl restart smg")
    assert status(guest, "/v1/models") == "200"
    return f"two keys open, a third does not; restart over TLS: {nothing_lost(result)}"


def reload(guest: Guest) -> None:
    """Returns when every process has been replaced."""
    guest.run("systemctl reload smg")
    guest.wait("test $(systemctl show -P SubState smg) = running", within_s=60, what="the reload is over")


def rotated_keys(guest: Guest) -> str:
    """systemd hands credentials over when a service starts, so they take a restart; a file of one's own takes a reload. Nothing is lost."""
    guest.write(f"{FOLDER}/api-keys", "old-key\nkept-key\n", mode=0o600)
    guest.run("systemctl restart smg")
    try:
        guest.write(f"{FOLDER}/api-keys", "new-key\nkept-key\n", mode=0o600)
        reload(guest)
        assert answers(guest, "old-key", "new-key") == ["200", "401"], "systemd hands credentials over at a reload too: tell it in smg(1)"
        with guest.load("--key", "kept-key", settle_s=1) as restarted:
            guest.run("systemctl restart smg")
        assert answers(guest, "old-key", "new-key", "kept-key") == ["401", "200", "200"]
        guest.run(f"rm {FOLDER}/api-keys && install -m 0640 -g smg /dev/null {OWN}")
        guest.run(f"printf 'old-key\\nkept-key\\n' > {OWN}")
        guest.write("/etc/smg/conf.d/keys.toml", f'[server]\napi_key_file = "{OWN}"\n')
        guest.run("systemctl restart smg")
        with guest.load("--key", "kept-key", settle_s=1) as reloaded:
            guest.run(f"printf 'new-key\\nkept-key\\n' > {OWN}")
            reload(guest)
        assert answers(guest, "old-key", "new-key", "kept-key") == ["401", "200", "200"]
    finally:
        guest.run(f"rm -f {FOLDER}/api-keys {OWN} /etc/smg/conf.d/keys.toml; systemctl restart smg")
    return f"by a restart: {nothing_lost(restarted)}; by a reload: {nothing_lost(reloaded)}"
