"""What the documents show is run: every block of Python in the README and in docs/, each by itself."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1)
]


def test_the_documents_have_code():
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_code_runs_as_it_stands(block, tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)  # for what a block may write
    exec(compile(block, "block", "exec"), {})


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
)
def test_links_between_documents_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_the_scoreboard_is_that_of_the_committed_results():
    """Every sentence of it comes from them: `eigengrad report --results … --document docs/experiments.md`."""
    pytest.importorskip("jinja2")
    from eigengrad.lab.experiments import ORDER
    from eigengrad.lab.report import load_outcomes, scoreboard
    from eigengrad.lab.report.scoreboard import BEGIN, END, figure_file

    outcomes, damaged = load_outcomes(ROOT / "benchmarks" / "results" / "experiments", ORDER)
    assert not damaged
    document = (ROOT / "docs" / "experiments.md").read_text()
    written = document[document.index(BEGIN) + len(BEGIN) : document.index(END)]
    assert written.strip() == scoreboard(outcomes).strip()
    for folder, outcome in outcomes:
        for figure in outcome.figures[:1] if outcome.findings else ():
            copy = figure_file(outcome, figure)
            shown = ROOT / "docs" / "images" / "experiments" / copy
            assert shown.read_bytes() == (folder / f"{figure.name}.png").read_bytes(), copy
