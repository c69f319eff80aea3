"""The table as a picture: rows come in, the text of an SVG goes out. A panel for each place, a pair of bars for each policy."""

from collections.abc import Iterator, Sequence
from html import escape

from bench.policies.figures import Figures

__all__ = ["draw"]

COLUMNS = 3
PANEL, HEAD, BAR, GAP = 400, 34, 9, 8
NAME, SPACE = 150, 60  # for a policy's name at the left, for the figure at a bar's right
INK, MEAN, TAIL, PAPER = "#24292f", "#1f6feb", "#a8c7fa", "#ffffff"

Row = tuple[str, str, Figures]


def draw(rows: Sequence[Row], *, title: str) -> str:
    """Gives the SVG. All bars of a panel have one scale, that of its longest."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row[0], []).append(row)
    columns = min(COLUMNS, len(panels))
    height = HEAD + max(map(len, panels.values())) * (2 * BAR + GAP) + GAP
    width, whole = columns * PANEL, 2 * HEAD + -(-len(panels) // columns) * height
    body = [text(GAP, 22, title, size=14, weight="bold")]
    body += [box(GAP, 34, 12, BAR, MEAN), text(GAP + 16, 42, "mean"), box(GAP + 70, 34, 12, BAR, TAIL)]
    body += [text(GAP + 86, 42, "p99 of the time to first token, ms")]
    for number, (place, group) in enumerate(panels.items()):
        left, top = number % columns * PANEL, 2 * HEAD + number // columns * height
        body += panel(place, group, left=left, top=top)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" font-family="sans-serif" font-size="11" fill="{INK}">'
    return "\n".join([head, box(0, 0, width, whole, PAPER), *body, "</svg>", ""])


def panel(place: str, rows: Sequence[Row], *, left: int, top: int) -> Iterator[str]:
    """Gives one place's elements."""
    scale = (PANEL - NAME - SPACE) / max(max(it.mean_ms, it.p99_ms) for _, _, it in rows)
    yield text(left + GAP, top + 20, place, size=12, weight="bold")
    for number, (_, name, it) in enumerate(rows):
        y = top + HEAD + number * (2 * BAR + GAP)
        yield text(left + NAME - 6, y + BAR + 4, name, anchor="end")
        for step, (value, colour) in enumerate(((it.mean_ms, MEAN), (it.p99_ms, TAIL))):
            yield box(left + NAME, y + step * BAR, value * scale, BAR, colour)
            yield text(left + NAME + value * scale + 4, y + step * BAR + BAR - 1, f"{value:.0f}", size=9)


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Gives a rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def text(x: float, y: float, words: str, *, size: int = 11, weight: str = "normal", anchor: str = "start") -> str:
    """Gives a line of text."""
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'
