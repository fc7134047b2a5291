"""Tutorials run from top to bottom, and what they print and draw stands on their pages."""

import json
import warnings
from pathlib import Path

import pytest
import torch

import run_blocks
import tutorials
from eigengrad import kernels

PAGES = [page for page in sorted((Path(__file__).parents[2] / "docs/tutorials").glob("*.md")) if page.stem != "index"]
LONG = {"own_experiment", "style_transfer", "whitening"}  # `make docs` runs all of them, too


def test_every_tutorial_is_run():
    assert len(PAGES) == 9


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in LONG)) for p in PAGES]
)
def test_a_tutorial_runs_and_what_it_shows_is_on_its_page(page, tmp_path, monkeypatch):
    text, threads = page.read_text(), torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    try:
        with kernels.disable(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = run_blocks.run(tutorials.blocks_of(text), tmp_path, page.stem)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert len(results) == len(tutorials.blocks_of(text)) > 2
    shown = tutorials.with_results(text, results)
    for result in results:
        assert result["printed"].rstrip() in shown
        for figure in result["figures"]:
            assert (tmp_path / figure["file"]).stat().st_size > 5000
            assert len(figure["alt"]) > 10
            assert f"![{figure['alt']}]({figure['file']})" in shown


def test_a_tutorial_that_fails_ends_the_build_and_names_the_block(tmp_path):
    with pytest.raises(tutorials.PluginError, match=r"broken\.md does not run(.|\n)*broken, block 2(.|\n)*NameError"):
        tutorials.execute("broken", "```python\nx = 1\n```\n\n```python\nprint(y)\n```\n", tmp_path)


def test_results_of_a_tutorial_are_kept_until_its_code_changes(tmp_path):
    folder = tmp_path / f"kept-{tutorials.digest(['print(1)' + chr(10)])}"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps([{"printed": "kept", "figures": []}]))
    assert tutorials.execute("kept", "words\n\n```python\nprint(1)\n```\n", tmp_path)[1][0]["printed"] == "kept"
    assert tutorials.digest(["print(1)\n"]) != tutorials.digest(["print(2)\n"])
