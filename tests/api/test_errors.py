"""The error table: every code of smg.errors has its line, and every renderer tells what it should and no more."""

import msgspec

from smg import errors
from smg.api.errors import TABLE, error_reply, internal_error, stream_error
from smg.errors import ConfigError, InvalidValue, RateLimited, SmgError, Unauthorized


def every_error():
    kinds = [getattr(errors, name) for name in errors.__all__]
    return [kind for kind in kinds if issubclass(kind, SmgError) and kind is not ConfigError]


def test_the_table_is_the_tree_of_errors():
    assert {kind.code: kind.status for kind in every_error()} == {code: kind.status for code, kind in TABLE.items()}


def test_the_openai_shape():
    reply = error_reply(InvalidValue("temperature must be between 0 and 2", param="temperature"), surface="openai")
    assert reply.status == 400
    assert dict(reply.headers) == {"content-type": "application/json", "x-smg-error-code": "invalid_value"}
    assert msgspec.json.decode(reply.body) == {
        "error": {
            "message": "temperature must be between 0 and 2",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "invalid_value",
        }
    }


def test_headers_say_when_and_how_to_come_back():
    assert dict(error_reply(RateLimited("slow down", retry_after_s=3), surface="openai").headers)["retry-after"] == "3"
    assert dict(error_reply(Unauthorized("no key"), surface="openai").headers)["www-authenticate"] == "Bearer"


def test_a_failed_stream_ends_with_its_error():
    data = stream_error(InvalidValue("no"), surface="openai")
    first, last, rest = data.split(b"\n\n")
    assert msgspec.json.decode(first.removeprefix(b"data: "))["error"]["code"] == "invalid_value"
    assert (last, rest) == (b"data: [DONE]", b"")


def test_a_fault_of_ours_tells_nothing():
    assert error_reply(internal_error(), surface="openai").status == 500
    assert "Traceback" not in internal_error().message
