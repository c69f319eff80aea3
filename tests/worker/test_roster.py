"""What comes of several sources that name engines, and of changes by the workers API."""

import pytest

from smg.worker import Edit, EngineSpec, HealthEdit, Source
from smg.worker.roster import Roster

URL = "grpc://a:1"
ALL: tuple[Source, ...] = ("api", "config", "file", "kubernetes")


def spec(source: Source, url: str = URL, **fields: object) -> EngineSpec:
    return EngineSpec(url=url, source=source, **fields)


@pytest.fixture
def roster() -> Roster:
    return Roster({})


def test_the_first_source_counts_and_the_next_takes_its_place(roster: Roster) -> None:
    for source in reversed(ALL):
        roster.say(spec(source))
    for source in ALL:
        wanted = roster.wanted(URL)
        assert wanted is not None
        assert wanted.source == source
        roster.unsay(URL, source)
    assert roster.wanted(URL) is None


def test_a_source_takes_away_its_own_alone(roster: Roster) -> None:
    roster.say(spec("config"))
    roster.replace("file", [spec("file"), spec("file", "grpc://b:1")])
    assert roster.replace("file", []) == [URL, "grpc://b:1"]
    assert roster.wanted(URL) == spec("config")
    assert roster.wanted("grpc://b:1") is None
    roster.unsay(URL, "api")
    assert roster.wanted(URL) == spec("config")


def test_only_what_changed_is_told(roster: Roster) -> None:
    assert roster.replace("file", [spec("file")]) == [URL]
    assert roster.replace("file", [spec("file")]) == []
    assert roster.replace("file", [spec("file", role="decode")]) == [URL]
    assert roster.count("file") == 1


def test_changes_add_up_and_survive_what_a_source_says_again(roster: Roster) -> None:
    roster.say(spec("file", labels=(("zone", "a"),), health=HealthEdit(success_threshold=1)))
    roster.edit(URL, Edit(priority=7, health=HealthEdit(check_interval_s=1)))
    roster.edit(URL, Edit(cost=2.0, health=HealthEdit(failure_threshold=9)))
    roster.say(spec("file", backend="vllm", health=HealthEdit(success_threshold=1)))
    health = HealthEdit(check_interval_s=1, failure_threshold=9, success_threshold=1)
    assert roster.wanted(URL) == spec("file", backend="vllm", priority=7, cost=2.0, health=health)
    roster.unedit(URL)
    assert roster.wanted(URL) == spec("file", backend="vllm", health=HealthEdit(success_threshold=1))


def test_what_was_removed_stays_away_until_nobody_names_it(roster: Roster) -> None:
    roster.say(spec("kubernetes"))
    roster.edit(URL, Edit(removed=True))
    assert roster.wanted(URL) is None
    roster.replace("kubernetes", [spec("kubernetes", role="decode")])
    assert roster.wanted(URL) is None
    roster.replace("kubernetes", [])
    assert roster.edits == {}
    roster.replace("kubernetes", [spec("kubernetes")])
    assert roster.wanted(URL) == spec("kubernetes")


def test_edits_of_an_earlier_life_wait_for_their_source() -> None:
    roster = Roster({URL: Edit(removed=True)})
    roster.replace("file", [])
    roster.say(spec("kubernetes"))
    assert roster.wanted(URL) is None
