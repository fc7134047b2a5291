"""What the documents show is run: every block of Python in the README and in docs/, each by itself.

A comment before a block says what it needs: ``<!-- needs: lightning -->`` a package, without which it is skipped,
``<!-- slow -->`` time, ``<!-- torchrun -->`` a process group.
"""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import public_names

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(need, block, id=f"{page.relative_to(ROOT)}:{number}", marks=[pytest.mark.slow] * (need == "slow"))
    for page in PAGES
    for number, (need, block) in enumerate(BLOCK.findall(page.read_text()), 1)
]


def test_the_documents_have_code():
    assert len(BLOCKS) >= 30


@pytest.mark.parametrize(("need", "block"), BLOCKS)
def test_a_block_of_code_runs_as_it_stands(need, block, tmp_path, monkeypatch):
    for package in need.removeprefix("needs: ").split(", ") if need.startswith("needs: ") else ():
        pytest.importorskip(package)
    if need == "torchrun":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)  # for what a block may write
    program = tmp_path / "block.py"
    program.write_text(block)  # a file, because some tools want to read the source of what they are given
    exec(compile(block, str(program), "exec"), {"__name__": "__main__"})


@pytest.mark.slow
def test_the_distributed_recipe_runs_in_two_processes(tmp_path):
    (block,) = [block for need, block in BLOCK.findall((ROOT / "docs/recipes.md").read_text()) if need == "torchrun"]
    program = tmp_path / "train.py"
    program.write_text(block)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "done with 2 process(es)" in done.stdout
    assert "statistics of one process" not in done.stderr


@pytest.mark.parametrize(
    "page", [str(p.relative_to(ROOT)) for p in (*PAGES, *sorted((ROOT / "docs/tutorials").glob("*.md")))]
)
def test_links_between_documents_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    pages = {"index", *(name for family in public_names.families() for name in family.names)}
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" in target:
            continue
        path = (ROOT / page).parent / target
        if path.parent.name == "reference":  # made when the site is built
            assert target.endswith(".md")
            assert path.stem in pages, target
        else:
            assert path.exists(), target


def test_the_readme_states_the_versions_that_the_package_asks_for():
    project = (ROOT / "pyproject.toml").read_text()
    (python_version,) = re.findall(r'^requires-python = ">=([\d.]+)"', project, re.MULTILINE)
    (torch_version,) = re.findall(r'^dependencies = \[.*"torch>=([\d.]+)"', project, re.MULTILINE)
    assert f"Python ≥ {python_version}, torch ≥ {torch_version};" in (ROOT / "README.md").read_text()


def test_figures_of_speed_in_the_readme_are_those_of_the_benchmarks():
    """Each row names sizes and factors; they are read from the committed results, not from memory."""
    rows = [row for row in (ROOT / "README.md").read_text().splitlines() if row.startswith("|") and " of n = " in row]
    assert len(rows) == 3
    results = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "benchmarks/results/eigh.md").read_text().splitlines()
        if line.startswith("| float32")
    ]
    for row in rows:
        kind = "forward + backward" if "gradient" in row else "forward"
        sizes = re.findall(r"(\d+) (?:matrices )?of n = (\d+(?:, \d+\b(?! of))*)", row.split("|")[1])
        pairs = [(batch, n) for batch, numbers in sizes for n in numbers.split(", ")]
        factors = [float(x) for x in re.findall(r"[\d.]+", row.split("|")[3])]
        assert len(pairs) == len(factors) >= 2, row
        for (count, n), factor in zip(pairs, factors, strict=True):
            (found,) = [float(r[8]) for r in results if r[1:4] == [kind, count, n]]
            assert found == pytest.approx(factor, rel=0.03), row


def test_the_scoreboard_is_that_of_the_committed_results():
    """Every sentence of it comes from them: `eigengrad report --results … --document docs/experiments.md`."""
    for package in ("jinja2", "matplotlib", "PIL"):  # of the extra lab
        pytest.importorskip(package)
    from eigengrad.lab.experiments import DECIDING, ORDER
    from eigengrad.lab.report import load_outcomes, scoreboard
    from eigengrad.lab.report.scoreboard import BEGIN, END, figure_file

    outcomes, damaged = load_outcomes(ROOT / "benchmarks" / "results" / "experiments", ORDER)
    assert not damaged
    document = (ROOT / "docs" / "experiments.md").read_text()
    written = document[document.index(BEGIN) + len(BEGIN) : document.index(END)]
    assert written.strip() == scoreboard(outcomes, deciding=DECIDING).strip()
    for folder, outcome in outcomes:
        for figure in outcome.figures[:1] if outcome.findings else ():
            copy = figure_file(outcome, figure)
            shown = ROOT / "docs" / "images" / "experiments" / copy
            assert shown.read_bytes() == (folder / f"{figure.name}.png").read_bytes(), copy
