"""Where engines that are added at run time may be: by scheme and network, whatever their address is written as."""

import asyncio
import socket

import pytest

from smg.config.networks import read_allowance
from smg.errors import Forbidden, InvalidValue, SmgError
from smg.worker.allowed import check_allowed, resolved

INNER = ("10.0.0.0/8", "fd12::/16", "unix://")


def verdict(url: str, *allow: str, addresses: list[str] | None = None) -> type[SmgError] | None:
    """Gives the error, or None. `addresses`: what the host's name resolves to."""

    async def resolve(host: str) -> list[str]:
        if addresses is None:
            return await resolved(host)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return addresses

    try:
        asyncio.run(check_allowed(url, allow, resolve=resolve))
    except SmgError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "grpc://169.254.0.1:50051",
        "http://0xa9fea9fe",
        "http://2852039166:80",
        "http://0251.0376.0251.0376",
        "grpc://[fe80::1]:1",
        "http://[::ffff:169.254.169.254]",
        "http://[::ffff:a9fe:a9fe]:8000",
        "http://[2002:a9fe:a9fe::1]",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://[fd00:ec2::254]",
    ],
)
def test_link_local_addresses_must_be_named(url: str) -> None:
    assert verdict(url) is Forbidden
    assert verdict(url, "0.0.0.0/0", "::/0") is Forbidden
    assert verdict(url, "http://", "grpc://") is Forbidden
    assert verdict(url, "169.254.0.0/16", "fe80::/10", "fd00:ec2::254") is None


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("grpc://10.1.2.3:1", None),
        ("http://10.255.255.255", None),
        ("grpc://[fd12::5]:1", None),
        ("unix:///run/engine.sock", None),
        ("grpc://11.0.0.1:1", Forbidden),
        ("http://127.0.0.1", Forbidden),
        ("grpc://[::1]:1", Forbidden),
        ("grpc://[::ffff:10.0.0.1]:1", None),
    ],
)
def test_networks(url: str, error: type[SmgError] | None) -> None:
    assert verdict(url, *INNER) is error
    assert verdict(url) is None


def test_schemes() -> None:
    allow = ("grpcs://", "http://10.0.0.0/8")
    assert verdict("grpcs://8.8.8.8:1", *allow) is None
    assert verdict("http://10.0.0.1", *allow) is None
    assert verdict("http://8.8.8.8", *allow) is Forbidden
    assert verdict("grpc://10.0.0.1:1", *allow) is Forbidden
    assert verdict("unix:///x", *allow) is Forbidden


def test_every_address_of_a_name_counts() -> None:
    assert verdict("grpc://engine:1", *INNER, addresses=["10.0.0.1", "fd12::1"]) is None
    assert verdict("grpc://engine:1", *INNER, addresses=["10.0.0.1", "8.8.8.8"]) is Forbidden
    assert verdict("grpc://engine:1", addresses=["10.0.0.1", "169.254.169.254"]) is Forbidden
    assert verdict("grpc://engine:1", addresses=["fe80::1%eth0"]) is Forbidden


def test_a_name_that_is_not_known() -> None:
    assert verdict("grpc://engine:1", addresses=[]) is None
    assert verdict("grpc://engine:1", *INNER, addresses=[]) is InvalidValue


@pytest.mark.parametrize("entry", ["", "10.0.0.1/8", "engine", "ftp://", "unix://10.0.0.0/8", "http://engine", "10.0.0.0/33", "://"])
def test_what_is_no_entry(entry: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  of several kinds, all shown with the entry
        read_allowance(entry)
