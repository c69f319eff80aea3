"""What happens before a handler, each part by itself: request ids, keys, CORS, bodies."""

import asyncio

import pytest

from smg.config import Config
from smg.config.tree import Server, Tenants
from smg.errors import BodyTooLarge, ClientGone, ConfigError, Forbidden, InvalidValue, Unauthorized, UnsupportedMedia
from smg.middleware import Cors, Keys, choose_request_id, load_keys, read_body

NAMES = ("x-request-id", "x-trace-id")


@pytest.mark.parametrize("value", ["a", "A-1_2.3:4/5+6=7@8~9", "x" * 128])
def test_harmless_ids_are_kept(value):
    assert choose_request_id({"x-request-id": value}, NAMES, prefix="req-") == (value, False)


@pytest.mark.parametrize("value", ["", " a", "a b", "-a", "a\r\nb", "ä", "x" * 129, "a\0", "{}", "a;b", "a,b"])
def test_others_are_replaced(value):
    made, own = choose_request_id({"x-request-id": value}, NAMES, prefix="req-")
    assert own
    assert made.startswith("req-")
    assert len(made) == 28


def test_the_first_harmless_header_wins():
    assert choose_request_id({"x-request-id": "a b", "x-trace-id": "t"}, NAMES, prefix="req-") == ("t", False)


def test_made_ids_differ():
    assert len({choose_request_id({}, NAMES, prefix="p-")[0] for _ in range(100)}) == 100


def test_without_keys_all_is_open():
    Keys([]).check({})


@pytest.mark.parametrize("value", ["Bearer k1", "bearer k2", "BEARER  k1 ", "Bearer schlüssel"])
def test_known_keys(value):
    Keys(["k1", "k2", "schlüssel"]).check({"authorization": value})


@pytest.mark.parametrize("value", [None, "", "k1", "Basic k1", "Bearer", "Bearer ", "Bearer K1", "Bearer k1x", "Bearer \udcff"])
def test_unknown_keys(value):
    with pytest.raises(Unauthorized):
        Keys(["k1"]).check({} if value is None else {"authorization": value})


def test_keys_as_anthropic_s_clients_send_them():
    keys = Keys(["k1"])
    keys.check({"x-api-key": "k1"})
    keys.check({"x-api-key": "k1", "authorization": "Basic xyz"})
    for headers in ({"x-api-key": "k2"}, {"x-api-key": ""}, {"x-api-key": "k1", "authorization": "Bearer k2"}):
        with pytest.raises(Unauthorized):
            keys.check(headers)


def test_a_tenant_s_key_does_not_open_what_manages_the_gateway():
    both = load_keys(Config(server=Server(api_key=("shared",)), tenants=Tenants(api_key=("acme:theirs",))))
    alone = load_keys(Config(tenants=Tenants(api_key=("acme:theirs",))))
    theirs, shared = {"authorization": "Bearer theirs"}, {"authorization": "Bearer shared"}
    assert both.check(theirs) == alone.check(theirs) == "auth:acme"
    assert both.check(shared, managing=True)
    for keys in (both, alone):
        with pytest.raises(Unauthorized):
            keys.check(theirs, managing=True)
    assert load_keys(Config()).check({}, managing=True) == ""


def test_keys_of_the_control_plane_alone_open_it_and_nothing_else():
    control = ("1:ops:admin:root:1", "2:eyes:user:look")
    keys = load_keys(Config(server=Server(api_key=("shared",), control_plane_api_keys=control)))
    admin, user, shared = ({"authorization": f"Bearer {key}"} for key in ("root:1", "look", "shared"))
    assert keys.check(admin, managing=True) == "control:1"
    assert keys.check({"x-api-key": "root:1"}, managing=True) == "control:1"
    with pytest.raises(Forbidden):
        keys.check(user, managing=True)
    for headers in (shared, {}, {"authorization": "Bearer other"}):
        with pytest.raises(Unauthorized):
            keys.check(headers, managing=True)
    assert keys.check(shared)
    for headers in (admin, user):
        with pytest.raises(Unauthorized):
            keys.check(headers)
    alone = load_keys(Config(server=Server(control_plane_api_keys=control)))
    assert alone.check({}) == ""
    with pytest.raises(Unauthorized):
        alone.check({}, managing=True)


def test_keys_of_flags_and_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# team a\nk1\n\n  k2 \n")
    keys = load_keys(Config(server=Server(api_key=("k0",), api_key_file=str(file))))
    for key in ("k0", "k1", "k2"):
        keys.check({"authorization": f"Bearer {key}"})
    with pytest.raises(Unauthorized):
        keys.check({"authorization": "Bearer # team a"})


@pytest.mark.parametrize("text", [None, "", "# only a comment\n"])
def test_a_key_file_never_opens_by_mistake(tmp_path, text):
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match="api_key_file"):
        load_keys(Config(server=Server(api_key_file=str(file))))


def test_cors_by_default_allows_nobody():
    assert Cors(()).headers({"origin": "https://a"}) == []


def test_cors_for_any_and_for_some():
    assert ("access-control-allow-origin", "*") in Cors(["*"]).headers({"origin": "https://a"})
    some = Cors(["https://a/"])
    assert ("access-control-allow-origin", "https://a") in some.headers({"origin": "https://a"})
    assert some.headers({"origin": "https://b"}) == [("vary", "origin")]
    assert some.headers({}) == [("vary", "origin")]


class Source:
    """A body as granian gives it: chunks, then an end; `broken`: the end comes early, or the one-step call raises."""

    def __init__(self, *chunks: bytes, broken: bool = False):
        self.chunks = list(chunks)
        self.read = 0
        self.broken = broken

    async def __call__(self):
        self.read += 1
        if self.broken:
            raise RuntimeError("RSGI transport error")
        return b"".join(self.chunks)

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.read += 1
        if not self.chunks:
            raise StopAsyncIteration
        return self.chunks.pop(0)


def read(source, limit=10**6, **headers):
    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return asyncio.run(read_body(source, given, limit=limit))


def test_bodies_of_known_and_unknown_length():
    assert read(Source(b"ab", b"c"), content_length="3") == b"abc"
    assert read(Source(b"ab", b"c")) == b"abc"
    assert read(Source(b"x" * 50_000, b"x" * 50_000), content_length="100000") == b"x" * 100_000
    assert read(Source(), content_length="0") == b""


def test_the_limit_is_the_longest_body_allowed():
    assert read(Source(b"x" * 10), limit=10) == b"x" * 10
    assert read(Source(b"x" * 10), limit=10, content_length="10") == b"x" * 10


def test_too_long_by_its_header_is_not_read():
    source = Source(b"x" * 11)
    with pytest.raises(BodyTooLarge):
        read(source, limit=10, content_length="11")
    assert source.read == 0


def test_too_long_by_count_is_not_read_to_its_end():
    source = Source(*[b"x" * 4] * 100)
    with pytest.raises(BodyTooLarge):
        read(source, limit=10)
    assert source.read == 3


@pytest.mark.parametrize("length", ["5", "100000"])
def test_a_body_that_breaks_off(length):
    with pytest.raises(ClientGone):
        read(Source(b"ab", broken=True), content_length=length)


@pytest.mark.parametrize("length", ["x", "-1", "1e3", "¹"])
def test_a_length_that_is_no_number(length):
    with pytest.raises(InvalidValue):
        read(Source(), content_length=length)


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_json_by_any_name(media):
    assert read(Source(b"{}"), content_type=media) == b"{}"


@pytest.mark.parametrize("media", ["text/plain", "", "multipart/form-data", "application/x-www-form-urlencoded", "text/x+json"])
def test_other_media(media):
    with pytest.raises(UnsupportedMedia):
        read(Source(b"{}"), content_type=media)


def test_encodings():
    assert read(Source(b"{}"), content_encoding="identity") == b"{}"
    with pytest.raises(UnsupportedMedia):
        read(Source(b"{}"), content_encoding="gzip")
