"""Zips and folders of unknown origin: whatever they hold, they are read or refused by name."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest

from eigengrad.lab.data import CorruptDataError, digest
from eigengrad.lab.data import files as data_files
from eigengrad.lab.data.files import FolderFiles, ZipFiles
from limits import limited_memory, time_limit
from sample_files import png, write_zip


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_packed_in_a_way_that_has_no_bound_is_refused(method, tmp_path):
    archive = ZipFiles(write_zip(tmp_path / "a.zip", method))
    with pytest.raises(
        CorruptDataError, match=r"0\.png: cannot be read from the zip \(it is neither stored nor deflated"
    ):
        archive.read("train/ant/0.png")


def test_a_zip_bomb_is_refused_by_what_it_declares(tmp_path):
    archive = ZipFiles(write_zip(tmp_path / "a.zip", content=bytes(300 << 20)))
    with (
        limited_memory(200 << 20),
        pytest.raises(CorruptDataError, match=r"it has 314,572,800 bytes; expected at most"),
    ):
        archive.read("train/ant/0.png")


def test_a_zip_bomb_that_declares_little_is_not_unpacked(tmp_path):
    path = write_zip(tmp_path / "a.zip", content=bytes(300 << 20))
    content = path.read_bytes().replace(struct.pack("<I", 300 << 20), struct.pack("<I", 100))
    path.write_bytes(content)
    archive = ZipFiles(path)
    with limited_memory(200 << 20), pytest.raises(CorruptDataError, match=r"0\.png: cannot be read from the zip"):
        archive.read("train/ant/0.png")


def test_a_name_of_a_thousand_folders_is_refused(tmp_path):
    """Every folder in it is a name of its own: 60 kB would become 2 GB."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/" * 30_000 + "0.png", b"")
    with limited_memory(512 << 20), pytest.raises(CorruptDataError, match=r"lies more than 32 folders deep"):
        ZipFiles(tmp_path / "a.zip")


@pytest.mark.parametrize(("length", "count"), [(30_000, 200), (10, 20_000)])
def test_long_names_of_deep_files_do_not_multiply(length, count, tmp_path, monkeypatch):
    """A zip of 20 MB had names of folders of 1.2 GB: 32 for each file, each nearly as long as its own."""
    monkeypatch.setattr(data_files, "_MOST_FOLDERS", 100_000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}{'ä' * length}" + "/a" * 31 + "/x", b"")
    with (
        limited_memory(100 << 20),
        pytest.raises(CorruptDataError, match=r"has a name of 30,0|has more than 100,000 folders"),
    ):
        ZipFiles(tmp_path / "a.zip")


def test_a_pipe_in_the_place_of_an_image_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "0.png")
    folder = FolderFiles(tmp_path)
    with time_limit(5), pytest.raises(CorruptDataError, match=r"0\.png: is not a regular file"):
        folder.read("0.png")


def circle(root: Path) -> Path:
    """Two links in a folder that lead back to it: 2⁴⁰ paths."""
    inner = root / "train" / "ant"
    inner.mkdir(parents=True)
    (inner / "0.png").write_bytes(png())
    (inner / "one").symlink_to(root)
    (inner / "two").symlink_to(root)
    return root


def test_links_in_a_circle_are_named(tmp_path):
    with (
        time_limit(5),
        pytest.raises(CorruptDataError, match=r"train/ant/(one|two): is a link to a folder that it lies"),
    ):
        FolderFiles(circle(tmp_path))


def test_links_in_a_circle_do_not_stop_a_digest(tmp_path):
    with time_limit(5):
        found = digest(circle(tmp_path / "a"))
    plain = tmp_path / "b" / "train" / "ant"
    plain.mkdir(parents=True)
    (plain / "0.png").write_bytes(png())
    assert found == digest(tmp_path / "b")


def test_links_that_multiply_folders_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "_MOST_FOLDERS", 5_000, raising=False)
    for level in range(20):
        (tmp_path / f"{level}").mkdir()
        (tmp_path / f"{level}" / "one").symlink_to(tmp_path / f"{level + 1}")
        (tmp_path / f"{level}" / "two").symlink_to(tmp_path / f"{level + 1}")
    (tmp_path / "20").mkdir()
    for read in (digest, FolderFiles):
        with time_limit(10), pytest.raises(CorruptDataError, match=r"has more than 5,000 folders"):
            read(tmp_path / "0")


def test_a_digest_is_as_it_was(tmp_path):
    """Runs are named by it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.png").write_bytes(b"123")
    (tmp_path / "a.png").write_bytes(b"1")
    assert digest(tmp_path, tmp_path / "a.png") == "47b7848c2bfa"
