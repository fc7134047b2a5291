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
