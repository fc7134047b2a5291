"""What a release needs: CI calls targets that exist, the version is the same everywhere, and no document is missing."""

import re
from pathlib import Path

import pytest

import eigengrad

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_ci_runs_targets_of_the_makefile_and_nothing_else(workflow):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = workflow.read_text()
    lists = re.findall(r"target: \[(.*?)\]", text)
    called = {name for found in lists for name in found.split(", ")}
    called |= set(re.findall(r"run: make ([a-z-]+)", text))
    assert called
    assert called <= targets
    others = [line.strip() for line in text.splitlines() if "run: " in line and "run: make" not in line]
    assert all("apt-get" in line for line in others)


def test_the_citation_has_the_version():
    assert re.search(
        rf"^version: {re.escape(eigengrad.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize(
    "name",
    [
        *("LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/releasing.md"),
        *(".github/PULL_REQUEST_TEMPLATE.md", ".github/ISSUE_TEMPLATE/wrong_gradient.yml"),
    ],
)
def test_what_a_repository_needs_is_there(name):
    assert (ROOT / name).read_text().strip()
