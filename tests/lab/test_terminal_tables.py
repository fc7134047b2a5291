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


def shown(monkeypatch, width, table=TABLE):
    console = Console(width=width)
    monkeypatch.setattr(terminal, "console", console)
    with console.capture() as capture:
        terminal.show(table)
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
    assert ("16" in line) == inside
    if not inside:
        assert line == f"SVD, failures: {FAILURE}"


def test_on_a_narrow_terminal_cells_are_broken_and_not_cut(monkeypatch):
    letters = "".join(c for c in shown(monkeypatch, 24) if c.isalnum())
    assert "…" not in shown(monkeypatch, 24)
    assert letters.count("16") == 2


METHODS = ("SVD", "PI", "SVD-Clip", "SVD-PI", "SVD-Taylor", "Exact (ours)", "IterNorm", "Batch norm")
WIDE = Table(
    "table4",
    "Success rate and test error (%)",
    ("method", *(f"d = {d} {what}" for d in (4, 8, 16, 32, 64) for what in ("ok", "min %", "mean %"))),
    tuple((name, *(value for _ in range(5) for value in ("10 of 10", 21.14, "21.14 ± 0.20"))) for name in METHODS),
)


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("table", [TABLE, WIDE])
def test_tables_are_no_wider_than_the_terminal(monkeypatch, width, table):
    text = shown(monkeypatch, width, table)
    lines = [line.rstrip() for line in text.splitlines() if FAILURE not in line]
    assert max(map(len, lines)) <= width
    for row in table.rows:
        for cell in row:
            assert cell is None or isinstance(cell, float) or str(cell) in text


def test_blocks_of_a_wide_table_repeat_its_first_column(monkeypatch):
    text = shown(monkeypatch, 80, WIDE)
    blocks = text.count("method")
    assert blocks > 1
    assert text.count("SVD-Taylor") == blocks
    assert [text.count(column) for column in WIDE.columns[1:]] == [1] * 15
    assert shown(monkeypatch, 400, WIDE).count("method") == 1


def test_the_table_of_compare_is_one_block_on_80_columns(monkeypatch):
    columns = ("method", "d", "ok", "min %", "mean %", "max 1/gap", "max |g|", "ms/step", "failures")
    rows = tuple((name, 16, "5 of 5", 12.3, 23.4, 3.579e8, 1.234e-5, 123.4, FAILURE) for name in METHODS)
    text = shown(monkeypatch, 80, Table("compare", "Compared", columns, rows))
    assert text.count("max 1/gap") == text.count("ms/step") == text.count("method  ") == 1
