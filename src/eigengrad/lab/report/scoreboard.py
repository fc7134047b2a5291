"""The scoreboard: every claim with its verdict, the effect, and what it rests on, as Markdown.

It is made from the outcomes of experiments alone, so it says what was run and nothing else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from ..files import make_folder, read_regular_file, write_atomically
from .outcome import PROTOCOL_CHECK, UNDECIDED, VERDICTS, Figure, Finding, Outcome
from .tables import conditions_text

__all__ = [
    *("BEGIN", "END", "FOLDED", "GROUPS"),
    *("board", "figure_file", "leading", "load_outcomes", "scoreboard", "update_document"),
]

BEGIN, END = "<!-- scoreboard: begin -->", "<!-- scoreboard: end -->"

#: Bytes of a document that is updated.
_LARGEST = 4 << 20
_MARKS = {"confirmed": "✔ confirmed", "refuted": "✘ refuted", "equivalent": "≈ equivalent", "undecided": "… undecided"}

#: A claim, and the experiment that says something about it.
Row = tuple[Outcome, Finding]

#: The group of claims that say nothing that another row does not say better.
FOLDED = "folded"
#: The groups of the scoreboard: heading, and what it means.
GROUPS = {
    "confirmed": ("Confirmed", ""),
    "refuted": ("Refuted", ""),
    "equivalent": ("Equivalent", "The difference is shown to be too small to matter."),
    "undecided": ("Undecided", "With what would decide it."),
    FOLDED: (
        "From fewer runs",
        "Reduced tables that decide nothing, and claims that stand above already.",
    ),
}


def board(outcomes: Sequence[tuple[Path, Outcome]], deciding: Collection[str] = ()) -> dict[str, list[Row]]:
    """The claims of all outcomes by group, in the order of :data:`GROUPS`, without protocol checks.

    Args:
        outcomes: folders and what was found; of one claim that several experiments judge alike, the first counts.
        deciding: experiments that were made to decide. What another leaves undecided at a reduced scale is folded; so
            is a claim that stands above with the same verdict, or with any if it is left undecided here.
    """
    rows = [(o, f) for _, o in outcomes for f in o.findings if f.detail != PROTOCOL_CHECK]
    groups: dict[str, list[Row]] = {name: [] for name in GROUPS}
    seen: dict[str, set[str]] = {}
    for outcome, finding in rows:
        before = seen.setdefault(finding.claim, set())
        undecided = finding.verdict == UNDECIDED
        weak = undecided and deciding and outcome.experiment not in deciding and outcome.scale != "paper"
        repeated = finding.verdict in before or (undecided and bool(before))
        groups[FOLDED if weak or repeated else finding.verdict].append((outcome, finding))
        before.add(finding.verdict)
    return groups


def load_outcomes(results: Path, order: Sequence[str] = ()) -> tuple[list[tuple[Path, Outcome]], list[str]]:
    """Load every ``results/<experiment>/<scale>/outcome.json``.

    Args:
        results: the folder that the experiments write to.
        order: names of experiments in the order they should appear; others follow by name.

    Returns:
        The folders and their outcomes, and for each that cannot be read what is wrong with it.
    """
    rank = {name: position for position, name in enumerate(order)}
    folders = sorted(
        (path.parent for path in results.glob("*/*/outcome.json")),
        key=lambda folder: (rank.get(folder.parent.name, len(rank)), folder.parent.name, folder.name),
    )
    outcomes: list[tuple[Path, Outcome]] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            outcomes.append((folder, Outcome.load(folder)))
        except (ValueError, OSError) as error:  # the second for a link that leads nowhere
            damaged.append(str(error))
    return outcomes, damaged


def leading(outcomes: Sequence[tuple[Path, Outcome]]) -> Row | None:
    """The finding that matters most to users: the first of ``fidelity``, if that has been run."""
    return next(((o, f) for _, o in outcomes for f in o.findings if o.experiment == "fidelity"), None)


def scoreboard(
    outcomes: Sequence[tuple[Path, Outcome]], images: str = "images/experiments", deciding: Collection[str] = ()
) -> str:
    """The claims of all outcomes as Markdown: the finding that matters most, a table a group, and the details below.

    Args:
        outcomes: folders and what was found, in their order.
        images: where the figures will lie, as seen from the document.
        deciding: see :func:`board`.
    """
    if not any(outcome.findings for _, outcome in outcomes):
        return "Nothing has been run yet.\n"
    first = leading(outcomes)
    parts = [] if first is None else [_lead(*first)]
    groups = board(outcomes, deciding)
    shown = sum(len(groups[verdict]) for verdict in VERDICTS)
    total = ", ".join(f"{len(groups[verdict])} {verdict}" for verdict in VERDICTS)
    parts.append(f"{shown} claims: {total}.\n")
    for name, rows in groups.items():
        if rows and name != FOLDED:
            heading, note = GROUPS[name]
            parts += [f"### {heading}\n", *([f"{note}\n"] if note else []), _group(name, rows)]
    if groups[FOLDED]:
        heading, note = GROUPS[FOLDED]
        parts.append(
            f'<details markdown="1"><summary>{heading}: {len(groups[FOLDED])} more rows. {note}</summary>\n\n'
            f"{_group(FOLDED, groups[FOLDED])}\n</details>\n"
        )
    checked = [o for _, o in outcomes if any(f.detail == PROTOCOL_CHECK for f in o.findings)]
    if checked:
        parts.append(
            f"Protocol checks, with one run a setting, which compare nothing: {', '.join(map(_link, checked))}.\n"
        )
    parts.append("### Details\n")
    parts += [_details(o, images) for _, o in outcomes if o.findings]
    return "\n".join(parts)


def update_document(
    document: Path, outcomes: Sequence[tuple[Path, Outcome]], deciding: Collection[str] = ()
) -> list[Path]:
    """Write the scoreboard between the two marks of a document, and its figures beside it; return what was written.

    Args:
        document: a Markdown file.
        outcomes, deciding: as for :func:`scoreboard`.

    Raises:
        ValueError: the document has no marks.
    """
    text = read_regular_file(document, _LARGEST).decode("utf-8")
    start, stop = text.find(BEGIN), text.find(END)
    if start < 0 or stop < start:
        raise ValueError(f"{document}: expected a line {BEGIN!r} and one {END!r} below it")
    new = f"{text[: start + len(BEGIN)]}\n\n{scoreboard(outcomes, deciding=deciding)}\n{text[stop:]}"
    images = document.parent / "images" / "experiments"
    make_folder(images)
    written = [document]
    write_atomically(document, new.encode())
    for folder, outcome in outcomes:
        for figure in outcome.figures[:1] if outcome.findings else ():
            source = folder / f"{figure.name}.png"
            if source.is_file() and not source.is_symlink():
                target = images / figure_file(outcome, figure)
                shutil.copyfile(source, target)
                written.append(target)
    return written


def figure_file(outcome: Outcome, figure: Figure) -> str:
    """The name of a figure beside the document."""
    return f"{_anchor(outcome)}-{figure.name}.png"


def _lead(outcome: Outcome, finding: Finding) -> str:
    """The first finding, as a sentence for those who want to know what to use."""
    return (
        f"> **{_plain(finding.claim.removeprefix('(ours) '))}** — {_plain(finding.label)}. {_plain(finding.evidence)} "
        f"({_plain(conditions_text(outcome.conditions))}; [details](#{_anchor(outcome)}).)\n"
    )


def _group(name: str, rows: Sequence[Row]) -> str:
    """A group as a table. A verdict that all rows share is its heading; what an undecided claim needs is a column."""
    middle = {"equivalent": ["margin"], "undecided": ["what would decide it"]}.get(name, [])
    heads = ["claim", *(["verdict"] if name == FOLDED else []), "effect, 95 % interval", *middle, "runs"]
    lines = [f"| {' | '.join([*heads, 'from'])} |", "|---" * (len(heads) + 1) + "|"]
    for o, f in rows:
        verdict, details = [_verdict(f)] if name == FOLDED else [], [f.detail or "–"] if middle else []
        cells = [f.claim, *verdict, f.size or "–", *details, f.runs or _runs(o)]
        lines.append("| " + " | ".join([*map(_plain, cells), _link(o)]) + " |")
    return "\n".join(lines) + "\n"


def _verdict(finding: Finding) -> str:
    return _MARKS[finding.verdict] + (f": {finding.detail}" if finding.detail else "")


def _runs(outcome: Outcome) -> str:
    """What an outcome rests on, where its findings do not say: trials, or arithmetic."""
    trials = outcome.conditions.get("trials")
    return f"{trials} trials" if trials else "arithmetic or measurement"


def _link(outcome: Outcome) -> str:
    return f"[`{_anchor(outcome)}`](#{_anchor(outcome)})"


def _anchor(outcome: Outcome) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{outcome.experiment}-{outcome.scale}".lower()).strip("-")


def _details(outcome: Outcome, images: str) -> str:
    """One experiment: what was run, what it says, the figure, and the command that repeats it."""
    lines = [f'<a id="{_anchor(outcome)}"></a>', "", f"#### {_plain(outcome.title)}", ""]
    conditions = _plain(conditions_text(outcome.conditions))
    lines += [f"Ours: {conditions}. The paper {_plain(_decapitalised(outcome.paper))}", ""]
    lines += [f"- *{_plain(f.label)}*: {_plain(f.claim)}. {_plain(f.evidence)}" for f in outcome.findings]
    lines.append("")
    for figure in outcome.figures[:1]:
        lines += [f"![{_plain(outcome.title)}]({images}/{figure_file(outcome, figure)})", ""]
    command = outcome.command or f"eigengrad reproduce {outcome.experiment} --scale {outcome.scale}"
    lines += [f"`{_plain(command)}`; tables in `{_plain(outcome.experiment)}/{_plain(outcome.scale)}`.", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A text as one line of Markdown: nothing in it is a tag, a cell or a paragraph of its own."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def _decapitalised(text: str) -> str:
    """A sentence as it goes on after “The paper”: a list of conditions follows a colon."""
    return text if text[:1].islower() else f"has: {text}"
