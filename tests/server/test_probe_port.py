"""A listener for probes alone."""

import pathlib

import httpx

from smg.sim.processes import free_port
from tests.server.harness import gateway, wait_until


def test_probes_have_a_port_of_their_own(tmp_path: pathlib.Path) -> None:
    port = free_port()
    with gateway(tmp_path, "--health-check-port", str(port)) as made:

        def status(path: str) -> int:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=30, trust_env=False).status_code

        for path in ("/health", "/liveness"):
            assert status(path) == 200
        assert status("/readiness") == 503  # its engine is not there
        assert status("/metrics") == 404
        [control] = made.named("control")
        made.signal(1)
        wait_until(lambda: control not in made.children() and len(made.named("control")) == 1, what="a reload replaces the process")
        assert status("/health") == 200  # the listener was open all the time
