"""Certificates for tests of TLS: an authority, and a server and a client that it vouches for. Used by the tests of engines and plane."""

import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path) -> Path:
    """Makes ca, server and client (.pem and .key) in a folder, and gives it. Skips the test when openssl is not there."""
    (folder / "extension").write_text("subjectAltName=DNS:localhost\n")

    def openssl(*arguments: str) -> None:
        try:
            subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("TLS is not tested: the command openssl is not installed")

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extension")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return folder
