"""What is kept of contents that come again: from the second coming on, never another content's, within the bounds."""

import random

from smg.pipeline.repeats import Repeats


def kept(repeats: Repeats[str], content: bytes, *, whose: int = 0) -> str | None:
    """Looks a content up as its users do: what is not there is made and kept, where it has a place."""
    place, value = repeats.find(content, whose=whose)
    if value is None and place is not None:
        repeats.keep(place, content, f"{whose} {content!r}", size=len(content))
    return value


def test_a_content_is_kept_from_its_second_coming_on() -> None:
    repeats: Repeats[str] = Repeats(limit_bytes=1 << 20)
    for content in (b"", b"x", b"long" * 5000):
        assert [kept(repeats, content) for _ in range(4)] == [None, None, f"0 {content!r}", f"0 {content!r}"]
    assert kept(repeats, b"x", whose=1) is None


def test_contents_that_come_once_are_not_kept() -> None:
    repeats: Repeats[str] = Repeats(limit_bytes=1 << 20)
    for number in range(2000):
        assert kept(repeats, b"%d" % number) is None
    assert repeats.counts().entries == 0


def test_contents_with_one_sample_are_told_apart() -> None:
    repeats: Repeats[str] = Repeats(limit_bytes=1 << 24)
    contents = []
    for at in range(1001, 1008):  # between the places that are sampled
        content = bytearray(b"-" * 20_000)
        content[at] = 0x2B
        contents.append(bytes(content))
    assert len({repeats.find(content)[0] for _ in range(2) for content in contents} - {None}) < len(contents)
    choice = random.Random(1)
    for _ in range(200):
        content = choice.choice(contents)
        assert kept(repeats, content) in (None, f"0 {content!r}")


def test_bytes_are_bounded() -> None:
    repeats: Repeats[str] = Repeats(limit_bytes=100_000)
    for number in range(200):
        content = b"%d" % number * 1000
        kept(repeats, content)
        kept(repeats, content)
        assert repeats.counts().bytes <= 100_000
    assert 5 < repeats.counts().entries < 100
