"""The native decoder against protobuf's own, on messages that no engine would send.

What is compared, for every protocol: with the descriptor cut down to the fields that the table names, native code and protobuf accept the
same bytes and give the same values. With the whole descriptor, native code accepts all that protobuf accepts, and gives what the driver's
`decode` gives; it may accept more, for it does not look into fields that it skips.
"""

import struct
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smg._ext import FieldTable
from smg.engine import ENGINES, GrpcEngine
from smg.engine.fields import MEANINGS, field_table
from smg.errors import EngineError
from smg_ext.wire import decode_message

RUNTIMES = [name for name in ENGINES.names() if issubclass(ENGINES.get(name), GrpcEngine)]
FIELDS = descriptor_pb2.FieldDescriptorProto


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def response(runtime: str) -> Descriptor:
    driver = ENGINES.get(runtime)
    assert issubclass(driver, GrpcEngine)
    return driver.service.methods_by_name["Generate"].output_type


def cut_down(whole: Descriptor) -> type[Message]:
    """The response with nothing but the fields that have a meaning."""
    made = descriptor_pb2.DescriptorProto()
    whole.CopyToProto(made)
    file = descriptor_pb2.FileDescriptorProto(name=f"{whole.full_name}.proto", package="cut", syntax="proto3")
    for one in [made, *[_inner(whole, field) for field in made.field if MEANINGS.get(field.name, "").startswith("enter")]]:
        kept = [field for field in one.field if _kept(field)]
        for field in kept:
            if field.type == FIELDS.TYPE_MESSAGE:
                field.type_name = "." + file.package + "." + field.type_name.rpartition(".")[2]
        used = sorted({field.oneof_index for field in kept if field.HasField("oneof_index")})
        message = descriptor_pb2.DescriptorProto(name=one.name)
        for field in kept:
            message.field.add().CopyFrom(field)
            if field.HasField("oneof_index"):
                message.field[-1].oneof_index = used.index(field.oneof_index)
        for index in used:
            message.oneof_decl.add().CopyFrom(one.oneof_decl[index])
        file.message_type.add().CopyFrom(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"cut.{whole.name}"))  # type: ignore[no-untyped-call]


def _inner(whole: Descriptor, field: FIELDS) -> descriptor_pb2.DescriptorProto:
    inner = descriptor_pb2.DescriptorProto()
    whole.fields_by_name[field.name].message_type.CopyToProto(inner)
    return inner


def _kept(field: FIELDS) -> bool:
    meaning = MEANINGS.get(field.name)
    return meaning is not None and (field.type != FIELDS.TYPE_MESSAGE or meaning.startswith("enter"))


TABLES = {runtime: FieldTable(field_table(response(runtime))) for runtime in RUNTIMES}
CUT = {runtime: cut_down(response(runtime)) for runtime in RUNTIMES}
WHOLE = {runtime: message_factory.GetMessageClass(response(runtime)) for runtime in RUNTIMES}
NAMES = ("choice", "token_ids", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "complete", "finish", "matched")


def values(reply: Any) -> dict[str, object]:
    """What a cut-down message says, in the words of `decode_message`."""
    which = reply.WhichOneof("response")
    said: dict[str, object] = {
        **dict.fromkeys(NAMES, 0),
        "token_ids": [],
        "complete": which == "complete",
        "finish": b"",
        "matched": None,
    }
    if which is None:
        return said
    meanings = {"ids": "token_ids", "choice": "choice", "finish": "finish"}
    for field, value in getattr(reply, which).ListFields():
        meaning = MEANINGS[field.name]
        if meaning == "ids":
            said["token_ids"] = list(value)
        elif meaning in ("matched_id", "matched_text"):
            said["matched"] = value.encode() if isinstance(value, str) else value
        else:
            said[meanings.get(meaning, meaning)] = value.encode() if isinstance(value, str) else value
    return said


def agree(runtime: str, data: bytes) -> bool:
    """Compares native code with protobuf; true when the bytes were a message."""
    try:
        expected = values(CUT[runtime].FromString(data))
    except DecodeError:
        with pytest.raises(ValueError, match="malformed"):
            decode_message(TABLES[runtime], data)
        accepted = False
    else:
        assert decode_message(TABLES[runtime], data) == expected
        accepted = True
    try:
        reply: Any = WHOLE[runtime].FromString(data)
    except DecodeError:
        return accepted
    native = decode_message(TABLES[runtime], data)
    if reply.WhichOneof("response") is None:
        assert (native["complete"], native["token_ids"]) == (False, [])
        return accepted
    try:
        delta = ENGINES.get(runtime).decode(ENGINES.get(runtime)("grpc://h:1"), reply)  # type: ignore[attr-defined]
    except EngineError:
        assert native["finish"] == b"error"
        return accepted
    assert (delta.choice, delta.token_ids) == (native["choice"], native["token_ids"])
    assert (delta.prompt_tokens, delta.completion_tokens) == (native["prompt_tokens"], native["completion_tokens"])
    assert (delta.cached_tokens, delta.reasoning_tokens) == (native["cached_tokens"], native["reasoning_tokens"])
    assert (delta.matched.encode() if isinstance(delta.matched, str) else delta.matched) == native["matched"]
    assert (delta.finish is not None) == native["complete"]
    return accepted


numbers = st.one_of(st.integers(0, 15), st.sampled_from([63, 64, 300, 2**29 - 1]))
integers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
texts = st.one_of(
    st.text(max_size=8).map(str.encode), st.sampled_from([b"stop", b"length", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xe2\x82"])
)


def tagged(number: int, wire_type: int, payload: bytes) -> bytes:
    return varint(number << 3 | wire_type) + payload


def sized(number: int, payload: bytes) -> bytes:
    return tagged(number, 2, varint(len(payload)) + payload)


leaves = st.one_of(
    st.builds(lambda n, v: tagged(n, 0, varint(v)), numbers, integers),
    st.builds(lambda n, v: sized(n, b"".join(map(varint, v))), numbers, st.lists(integers, max_size=6)),
    st.builds(sized, numbers, texts),
    st.builds(sized, numbers, st.binary(max_size=6)),
    st.builds(lambda n, v: tagged(n, 1, struct.pack("<Q", v)), numbers, st.integers(0, 2**64 - 1)),
    st.builds(lambda n, v: tagged(n, 5, struct.pack("<I", v)), numbers, st.integers(0, 2**32 - 1)),
)
fields = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda n, parts: tagged(n, 3, b"".join(parts) + tagged(n, 4, b"")), numbers, st.lists(inner, max_size=3)),
        st.builds(lambda n, parts: sized(n, b"".join(parts)), st.integers(1, 3), st.lists(inner, max_size=6)),
    ),
    max_leaves=12,
)
messages = st.lists(fields, max_size=5).map(b"".join)
edits = st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["set", "drop", "put", "cut"]), st.integers(0, 255)), max_size=4)


def edited(data: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    out = bytearray(data)
    for at, kind, byte in changes:
        i = at % (len(out) + 1)
        if kind == "cut":
            del out[i:]
        elif kind == "put":
            out.insert(i, byte)
        elif i < len(out) and kind == "set":
            out[i] = byte
        elif i < len(out):
            del out[i]
    return bytes(out)


@pytest.mark.parametrize("runtime", RUNTIMES)
@settings(max_examples=150, deadline=None)
@given(data=messages, changes=edits)
@example(data=tagged(1, 3, b"") * 99 + tagged(1, 4, b"") * 99, changes=[])
@example(data=tagged(1, 3, b"") * 100 + tagged(1, 4, b"") * 100, changes=[])
@example(data=tagged(1, 3, b"") * 101 + tagged(1, 4, b"") * 101, changes=[])
@example(data=tagged(1, 3, b"") * 102 + tagged(1, 4, b"") * 102, changes=[])
@example(data=sized(2, tagged(5, 3, b"") * 98 + tagged(5, 4, b"") * 98), changes=[])
@example(data=sized(2, tagged(5, 3, b"") * 99 + tagged(5, 4, b"") * 99), changes=[])
@example(data=sized(2, tagged(5, 3, b"") * 100 + tagged(5, 4, b"") * 100), changes=[])
@example(data=sized(2, tagged(5, 3, b"") * 101 + tagged(5, 4, b"") * 101), changes=[])
@example(data=b"\x08" + b"\xff" * 9 + b"\x01", changes=[])
@example(data=b"\x08" + b"\xff" * 9 + b"\x7f", changes=[])
@example(data=b"\x08" + b"\x80" * 9 + b"\x02", changes=[])
@example(data=b"\x08" + b"\xff" * 10 + b"\x01", changes=[])
@example(data=b"\x88\x80\x80\x80\x00\x01", changes=[])
@example(data=b"\x88\x80\x80\x80\x10\x01", changes=[])
@example(data=b"\x88\x80\x80\x80\x80\x00\x01", changes=[])
@example(data=b"\x0a\x80\x80\x80\x80\x00", changes=[])
@example(data=b"\x0a\x80\x80\x80\x80\x80\x00", changes=[])
@example(data=b"\x12\xff\xff\xff\xff\x07", changes=[])
@example(data=b"\x00\x00", changes=[])
@example(data=b"\x0c", changes=[])
@example(data=b"\x0e\x00", changes=[])
def test_native_and_protobuf_agree(runtime: str, data: bytes, changes: list[tuple[int, str, int]]) -> None:
    agree(runtime, edited(data, changes))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_last_member_counts_and_parts_are_merged(runtime: str) -> None:
    numbers = {field.name: field.number for field in response(runtime).fields}
    for order in (("chunk", "complete"), ("complete", "chunk"), ("chunk", "chunk"), ("complete", "chunk", "complete")):
        data = b"".join(sized(numbers[name], sized(1, varint(i + 1)) + tagged(3, 0, varint(7))) for i, name in enumerate(order))
        assert agree(runtime, data)


def test_tables_are_checked() -> None:
    for messages in (
        [{64: ("ids", 0)}],
        [{0: ("ids", 0)}],
        [{1: ("enter", 1)}],
        [{1: ("enter", 0)}],
        [{1: ("enter", 1)}, {1: ("enter", 1)}],
        [{1: ("nonsense", 0)}],
        [{}] * 256,
    ):
        with pytest.raises(ValueError, match=r"table|message|tuple"):
            FieldTable(messages)
