"""Tables on terminals of any width: nothing that they say is lost, and names stay whole where there is room."""

import pytest
from rich.console import Console

from eigengrad.lab.commands import terminal
from eigengrad.lab.report import Table

FAILURE = "2 × non-finite gradient (first at step 1)"
TABLE = Table(
    "compare",
    "Every method",
    ("method", "d", "max 1/gap", "nothing", "failures"),
    (("SVD-Taylor [ours]", 16, 3.579e08, None, None), ("SVD", 16, None, None, FAILURE)),
    {"scale": "smoke"},
)


def shown(monkeypatch, width):
    console = Console(width=width)
    monkeypatch.setattr(terminal, "console", console)
    with console.capture() as capture:
        terminal.show(TABLE)
    return capture.get()


@pytest.mark.parametrize("width", [200, 92, 80, 60, 48])
def test_names_numbers_and_sentences_are_whole(monkeypatch, width):
    text = shown(monkeypatch, width)
    for part in ("SVD-Taylor [ours]", "3.579e+08", FAILURE, "scale: smoke"):
        assert part in text
    assert "nothing" not in text


@pytest.mark.parametrize(("width", "inside"), [(200, True), (60, False)])
def test_sentences_go_below_where_there_is_no_room(monkeypatch, width, inside):
    line = next(line for line in shown(monkeypatch, width).splitlines() if FAILURE in line)
    assert line.startswith("│") == inside
    if not inside:
        assert line == f"SVD, failures: {FAILURE}"


def test_on_a_narrow_terminal_cells_are_broken_and_not_cut(monkeypatch):
    letters = "".join(c for c in shown(monkeypatch, 24) if c.isalnum())
    assert "…" not in shown(monkeypatch, 24)
    assert letters.count("16") == 2
