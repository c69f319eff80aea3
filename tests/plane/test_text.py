"""The parts of the native stream machine against their plain-Python twins."""

import codecs

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smg_ext.text import Utf8Decoder, escape_json

pieces = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.text(max_size=4).map(str.encode),
        st.sampled_from(
            [b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xef\xbf\xbd"]
        ),
    ),
    max_size=12,
)


@settings(max_examples=500, deadline=None)
@given(pieces=pieces)
@example(pieces=[bytes([byte]) for byte in b"\xf0\x90\x80A\xe0\x9f\xbf\xf5"])
def test_utf8_in_pieces(pieces: list[bytes]) -> None:
    twin, native = codecs.getincrementaldecoder("utf-8")("replace"), Utf8Decoder()
    for piece in pieces:
        assert native.feed(piece) == twin.decode(piece)
    assert native.flush() == twin.decode(b"", final=True)
    assert native.flush() == ""


def test_every_pair_of_bytes() -> None:
    for first in range(128, 256):
        for second in range(256):
            for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\xbf", b"a"):
                data = bytes([first, second]) + rest
                native = Utf8Decoder()
                assert native.feed(data) + native.flush() == data.decode("utf-8", "replace")


@settings(max_examples=500, deadline=None)
@given(text=st.text(max_size=40))
@example(text="".join(map(chr, range(0x100))))
@example(text='\u2028\u2029\ufeff\U0001f600"\\/')
def test_json_escapes(text: str) -> None:
    assert b'"%b"' % escape_json(text.encode()) == msgspec.json.encode(text)
