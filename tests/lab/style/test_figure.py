"""Figure 2: whitening of points, and photographs that exchange their colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from eigengrad.lab.experiments import Context, find


def test_both_claims_are_confirmed_with_numbers(tmp_path: Path) -> None:
    outcome = find("fig2").run("smoke", Context(tmp_path))
    assert [finding.verdict for finding in outcome.findings] == ["confirmed", "confirmed"]
    points, colours = outcome.tables
    _, pca, zca = points.rows
    for row in (pca, zca):
        assert row[1:4] == pytest.approx((1, 1, 0), abs=1e-9)
    assert pca[4] == pytest.approx(37.5, abs=0.1)
    assert zca[4] == pytest.approx(0, abs=1e-9)
    for row in colours.rows:
        assert row[1] < 1e-5
        assert row[2] < 1e-3
    folder = tmp_path / "fig2" / "smoke"
    for figure in outcome.figures:
        with Image.open(folder / f"{figure.name}.png") as image:
            assert image.width > 1000
