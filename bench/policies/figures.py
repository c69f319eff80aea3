"""What a run measured, what is said of it, and the table: times of requests come in, lines of text go out. Used by every mode."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from msgspec import Struct

__all__ = ["BASE", "Figures", "Sample", "combine", "table", "within"]

BASE = "round_robin"
MEAN_LESS, P99_LESS = 0.23, 0.28  # of the original's published figures for cache aware routing with events, eight replicas
UNSHARED_MORE = 0.05


class Sample(Struct):
    """What a run saw. `itl_s`: each answer's mean gap between tokens, `longest_s` its longest; `gaps_s`: those of all answers.

    `computed`: prompt tokens that each engine had to compute.
    """

    ttft_s: list[float] = []
    itl_s: list[float] = []
    longest_s: list[float] = []
    gaps_s: list[float] = []
    prompt: int = 0
    cached: int = 0
    computed: list[int] = []
    failed: int = 0

    def add(self, begun_s: float, times_s: Sequence[float], *, tokens: int, scale: float = 1.0) -> None:
        """Takes an answer of so many tokens: when it was asked for, and when something of it came, each time. `scale`: of all times."""
        gaps = [scale * (later - earlier) for earlier, later in pairwise(times_s)]
        self.ttft_s.append(scale * (times_s[0] - begun_s))
        self.itl_s.append(scale * (times_s[-1] - times_s[0]) / max(1, tokens - 1))
        self.longest_s.append(max(gaps, default=0.0))
        self.gaps_s += gaps

    def figures(self) -> "Figures":
        """Gives what is said of it."""
        return Figures(
            requests=len(self.ttft_s),
            failed=self.failed,
            mean_ms=1e3 * fmean(self.ttft_s),
            p50_ms=1e3 * percentile(self.ttft_s, 0.5),
            p99_ms=1e3 * percentile(self.ttft_s, 0.99),
            itl_ms=1e3 * fmean(self.itl_s),
            gap_p99_ms=1e3 * percentile(self.gaps_s, 0.99),
            longest_ms=1e3 * percentile(self.longest_s, 0.5),
            cached=self.cached / max(1, self.prompt),
            imbalance=max(self.computed) * len(self.computed) / max(1, sum(self.computed)),
        )


class Figures(Struct, frozen=True):
    """`mean_ms`, `p50_ms`, `p99_ms`: the time to the first token. `itl_ms`: mean of the answers' mean gaps; `gap_p99_ms`: of all gaps
    between tokens; `longest_ms`: median of the answers' longest gaps.

    `cached`: part of the prompts' tokens. `imbalance`: prompt tokens that the busiest engine computed over the mean of all.
    """

    requests: float
    failed: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    itl_ms: float
    gap_p99_ms: float
    longest_ms: float
    cached: float
    imbalance: float


def combine(runs: Sequence[Figures]) -> Figures:
    """Gives the mean of several runs' figures."""
    return Figures(**{name: fmean(getattr(run, name) for run in runs) for name in Figures.__struct_fields__})


def percentile(values: Iterable[float], share: float) -> float:
    """Gives the value that so large a part of the values is not over."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def table(rows: Sequence[tuple[str, str, Figures]]) -> Iterator[str]:
    """Gives the lines for (place, name, figures); differences are to round robin at the same place."""
    yield (
        f"{'':18} {'':26} {'requests':>8} {'TTFT mean':>10} {'p50':>7} {'p99':>8} {'ITL':>7} {'gap p99':>7} {'longest':>7}"
        f" {'cached':>7} {'imbalance':>9} {'mean':>6} {'p99':>6} against {BASE}"
    )
    bases = {place: figures for place, name, figures in rows if name.endswith(BASE)}
    for place, name, it in rows:
        base = bases.get(place)
        against = f" {it.mean_ms / base.mean_ms - 1:+6.0%} {it.p99_ms / base.p99_ms - 1:+6.0%}" if base and base is not it else ""
        failed = f" {it.failed:.0f} failed" if it.failed else ""
        yield (
            f"{place:18} {name:26} {it.requests:8.0f} {it.mean_ms:7.1f} ms {it.p50_ms:7.1f} {it.p99_ms:8.1f} {it.itl_ms:7.2f}"
            f" {it.gap_p99_ms:7.1f} {it.longest_ms:7.1f} {it.cached:7.1%} {it.imbalance:9.2f}{against}{failed}"
        )


def within(rows: Sequence[tuple[str, str, Figures]], *, claimed: str, unshared: str) -> Iterator[str]:
    """Gives a line for each bound that is not kept: at the place `claimed` cache_aware+events, at `unshared` all against round robin."""
    bases = {place: figures for place, name, figures in rows if name == BASE}
    for place, name, it in rows:
        base = bases.get(place)
        if base is None:
            continue
        mean, p99 = it.mean_ms / base.mean_ms - 1, it.p99_ms / base.p99_ms - 1
        if place == claimed and name == "cache_aware+events" and (mean > -MEAN_LESS or p99 > -P99_LESS):
            yield f"{place} {name}: mean {mean:+.1%}, p99 {p99:+.1%}; wanted {-MEAN_LESS:.0%} and {-P99_LESS:.0%}"
        if place == unshared and (mean > UNSHARED_MORE or p99 > UNSHARED_MORE):
            yield f"{place} {name}: mean {mean:+.1%}, p99 {p99:+.1%}; at most {UNSHARED_MORE:+.0%} is wanted where nothing is shared"
