"""Outcomes of unknown origin: whatever they hold, the page shows them or names what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eigengrad.lab.report import build_page
from limits import limited_memory, time_limit
from sample_files import DATA, Elements, outcome


def strings(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in some JSON there are strings."""
    if isinstance(value, dict):
        return [place for key in value for place in strings(value[key], (*path, key))]
    if isinstance(value, list):
        return [place for i, entry in enumerate(value) for place in strings(entry, (*path, i))]
    return [path] if isinstance(value, str) else []


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    data = json.loads(json.dumps(data))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return data


def page_of(tmp_path: Path, content: Any) -> str:
    good, other = tmp_path / "fig3" / "small", tmp_path / "table4" / "small"
    outcome().write(good)
    other.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (other / "outcome.json").write_text(text, encoding="utf-8")
    return build_page(tmp_path).read_text(encoding="utf-8")


ATTACKS = ["<script>alert(1)</script>", "'><img src=x onerror=alert(1)>", '" onload="alert(1)', "{{ 7 * 191 }}"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_field_of_an_outcome_can_put_anything_into_the_page(attack, tmp_path):
    data = outcome().to_dict()
    expected = Elements(page_of(tmp_path, data))
    for path in strings(data):
        page = page_of(tmp_path, changed(data, path, attack))
        found = Elements(page)
        assert found.tags <= expected.tags, path
        assert found.attributes <= expected.attributes, path
        assert "1337" not in page, path
    for path in (("conditions",), ("about",), ("tables", 0, "conditions")):
        found = Elements(page_of(tmp_path, changed(data, path, {attack: attack})))
        assert found.tags <= expected.tags
        assert found.attributes <= expected.attributes


@pytest.mark.parametrize("name", ["../secret", "/etc/secret", "a/b", "..\\secret", "c:secret", "", "a\0b"])
def test_a_figure_or_table_that_leaves_the_folder_is_refused_by_name(name, tmp_path):
    (tmp_path / "table4").mkdir()
    (tmp_path / "table4" / "secret.png").write_bytes(b"a secret")
    for path in (("figures", 0, "name"), ("tables", 0, "name")):
        page = page_of(tmp_path, changed(outcome().to_dict(), path, name))
        assert "table4/small/outcome.json is damaged (" in page
        assert "leaves its folder" in page
        assert "YSBzZWNyZXQ" not in page  # "a secret" in base64


def test_a_figure_that_is_a_link_or_a_pipe_is_not_shown(tmp_path):
    folder = tmp_path / "fig3" / "small"
    outcome().write(folder)
    (tmp_path / "secret").write_bytes(b"a secret")
    (folder / "curves.png").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "curves.svg")
    with time_limit(5):
        page = build_page(tmp_path).read_text()
    assert "image missing" in page
    assert "YSBzZWNyZXQ" not in page


MALFORMED = {
    "a list": "[]",
    "a number": "1",
    "nothing": "",
    "null": "null",
    "nested": "[" * 100_000,
    "a number of many digits": '{"seconds": ' + "9" * 5000 + "}",
    "seconds too large": changed(DATA, ("seconds",), 10**400),
    "seconds that are none": changed(DATA, ("seconds",), float("nan")),
    "seconds in words": changed(DATA, ("seconds",), "many"),
    "a title that is a list": changed(DATA, ("title",), ["a"]),
    "conditions that are a list": changed(DATA, ("conditions",), ["a"]),
    "about that is null": changed(DATA, ("about",), None),
    "notes that are numbers": changed(DATA, ("notes",), [1]),
    "a verdict": changed(DATA, ("findings", 0, "verdict"), "perhaps"),
    "a row too short": changed(DATA, ("tables", 0, "rows"), [["SVD"]]),
    "a cell that is a list": changed(DATA, ("tables", 0, "rows", 0, 1), [1]),
    "columns that are numbers": changed(DATA, ("tables", 0, "columns"), [1, 2]),
    "an unknown field": DATA | {"more": "x"},
    "a missing field": {name: value for name, value in DATA.items() if name != "day"},
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_outcome_is_named_and_the_others_are_shown(kind, tmp_path):
    page = page_of(tmp_path, MALFORMED[kind])
    assert "table4/small/outcome.json is damaged (" in page
    assert "A claim" in page


def test_half_a_character_does_not_stop_the_page(tmp_path):
    assert "A claim" in page_of(tmp_path, changed(DATA, ("title",), "\ud800"))


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nowhere", "link to itself", "huge"])
def test_something_else_in_the_place_of_an_outcome_is_named(kind, tmp_path):
    outcome().write(tmp_path / "fig3" / "small")
    path = tmp_path / "table4" / "small" / "outcome.json"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(6_000_000_000)
    else:
        path.symlink_to(path if kind == "link to itself" else tmp_path / "nowhere")
    with time_limit(5), limited_memory(1 << 30):
        page = build_page(tmp_path).read_text()
    assert "A claim" in page
    assert kind.startswith("link") or "table4/small/outcome.json" in page
