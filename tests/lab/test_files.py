"""Files are written whole, in their own place."""

from __future__ import annotations

import os

import pytest

from eigengrad.lab import files as files_module
from eigengrad.lab.files import write_atomically


def test_writing_does_not_follow_a_link_that_somebody_has_planted(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".result.json.{os.getpid()}.partial").symlink_to(victim)
    (tmp_path / "result.json").symlink_to(victim)
    write_atomically(tmp_path / "result.json", b"new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "result.json").read_text() == "new"
    assert not (tmp_path / "result.json").is_symlink()


def test_writing_does_not_follow_a_link_even_where_its_name_is_guessed(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module.secrets, "token_hex", lambda count: "guessed")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".result.json.{os.getpid()}.guessed.partial").symlink_to(victim)
    with pytest.raises(FileExistsError, match=r"cannot write .*result\.json"):
        write_atomically(tmp_path / "result.json", b"new")
    assert victim.read_text() == "mine"
