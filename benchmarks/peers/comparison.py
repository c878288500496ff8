"""Two commands in turns, and what their figures say: ratios of neighbours, not of averages."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.processes import PeerError, call

Command = Sequence[str | Path]


@dataclass(slots=True)
class Comparison:
    """Output tokens per second of Chairlift and one peer, round by round.

    The machine's speed drifts; the ratio of two runs, one after the other, drifts far less.
    """

    title: str
    """Of the peer, with its version."""
    chairlift: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Chairlift over the peer, per round."""
        return [a / b for a, b in zip(self.chairlift, self.peer, strict=True)]

    def row(self) -> str:
        """A row of the table."""
        ratios = self.ratios
        cells = (
            self.title,
            _rate(statistics.median(self.peer)),
            _rate(statistics.median(self.chairlift)),
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        )
        return f"| {' | '.join(cells)} |"


def compare(
    title: str,
    chairlift: Command,
    peer: Command,
    rounds: int,
    on_progress: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> Comparison:
    """Run A B A B, each command with these environment variables beside those of this process.

    Raises:
        PeerError: A command failed, or printed no result.
    """
    comparison = Comparison(title)
    for number in range(1, rounds + 1):
        sides = (("Chairlift", chairlift, comparison.chairlift), (title, peer, comparison.peer))
        for name, command, figures in sides:
            result = read_result(name, call(command, variables=variables))
            figures.append(float(result["tokens_per_s"]))
            on_progress(
                f"round {number} of {rounds}: {name} {_rate(figures[-1])} tokens/s "
                f"({result['output_tokens']} tokens, {result['seconds']:.1f} s)"
            )
    return comparison


def read_result(name: str, output: str) -> dict[str, float]:
    """Return the JSON line; engines print lines of their own before it and while they end.

    Raises:
        PeerError: There is none.
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            result: dict[str, float] = json.loads(line)
            return result
    message = f"{name} printed no result"
    raise PeerError(message)


def table(comparisons: Sequence[Comparison]) -> str:
    """A markdown table, one row per peer."""
    return "\n".join([_HEADER, *(comparison.row() for comparison in comparisons)])


_HEADER = "| | peer, tokens/s | Chairlift, tokens/s | Chairlift / peer |\n| --- | --- | --- | --- |"


def with_kept_rows(
    before: str, caption: str, comparisons: Sequence[Comparison], note: str = ""
) -> str:
    """Return a caption with its table, and the rows of the section before that were not measured.

    Args:
        before: The section: captions, each with its table. A row of an equal caption joins the new
            table; the others stay below, under their own.
        caption: What was measured now, and on what.
        comparisons: With at least one peer.
        note: Stands below their table.
    """
    measured = {comparison.title for comparison in comparisons}
    sections = {caption: [comparison.row() for comparison in comparisons]}
    of = caption
    for line in before.splitlines():
        if line.startswith("| ") and not line.startswith(("| |", "| ---")):
            if line.split("|")[1].strip() not in measured:
                sections.setdefault(of, []).append(line)
        elif line and not line.startswith("|"):
            of = line.removeprefix(_EARLIER)
    texts = []
    for number, (own, rows) in enumerate(sections.items()):
        head = f"{_EARLIER if number else ''}{own}"
        texts.append("\n".join([head, "", _HEADER, *rows]))
        if note and not number:
            texts.append(note)
    return "\n\n".join(texts)


_EARLIER = "Earlier: "


def page_with_marks(folder: Path, name: str) -> Path:
    """Return the markdown file of a folder that has the marks of a table.

    Raises:
        ValueError: No file has them.
    """
    for page in sorted(folder.glob("*.md")):
        if f"<!-- {name} -->\n" in page.read_text(encoding="utf-8"):
            return page
    message = f"no page of {folder} has marks for {name}"
    raise ValueError(message)


def put_between_marks(document: str, name: str, text: Callable[[str], str]) -> str:
    """Replace what stands between `<!-- NAME -->` and `<!-- end -->`.

    Args:
        document: With these marks.
        name: Of the first.
        text: From what stands there to what shall.

    Raises:
        ValueError: The marks are not there.
    """
    mark = f"<!-- {name} -->\n"
    before, found, rest = document.partition(mark)
    old, ended, after = rest.partition("<!-- end -->")
    if not found or not ended:
        message = f"no marks for {name}"
        raise ValueError(message)
    return f"{before}{mark}{text(old)}\n{ended}{after}"


def _rate(per_s: float) -> str:
    """One long prompt and one token of answer is a rate below one."""
    return f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2g}"
