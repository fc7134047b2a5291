"""Files of unknown origin: whatever they hold, they are read or refused by name, and nothing else happens.

The fuzzers run in a process of their own, which has 2 GB more than it starts with and 10 s for each file.
``python tests/lab/test_hostile_files.py <reader> <seed> <files> <seconds>`` runs one by hand, and ``make fuzz-files``
all of them on 117,000 files.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import io
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from eigengrad.lab import files as files_module
from eigengrad.lab.data import CorruptDataError, DataError, MissingDataError, cifar, digest, load
from eigengrad.lab.data import files as data_files
from eigengrad.lab.data.files import FolderFiles, ZipFiles
from eigengrad.lab.data.pictures import Pictures
from eigengrad.lab.experiments.records import record
from eigengrad.lab.files import require_checksums, write_atomically
from eigengrad.lab.matrices import MatrixFileError, read_matrices
from eigengrad.lab.report import Finding, Outcome, Table, build_page
from eigengrad.lab.report.outcome import Figure
from eigengrad.lab.style import weights as style_weights
from eigengrad.lab.style.images import PictureError, read_picture
from eigengrad.lab.style.translation import TranslationConfig
from eigengrad.lab.style.translation.apply import load_painter
from eigengrad.lab.style.translation.translator import Translator
from eigengrad.lab.style.weights import SHIPPED, WeightsError, load_codec
from eigengrad.lab.sweeps.progress_table import ProgressTable
from eigengrad.lab.sweeps.run import Run
from eigengrad.lab.tensors import load_tensors
from eigengrad.lab.training import Config, Failure, Result
from eigengrad.lab.training.checkpoint import CheckpointError, Checkpoints

ROWS = 3
FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def batch(rows: int = ROWS) -> dict[str, Any]:
    data = np.arange(rows * 3072, dtype=np.uint8).reshape(rows, 3072)
    return {"labels": [i % 10 for i in range(rows)], "data": data, "filenames": [f"{i}.png" for i in range(rows)]}


def write_cifar(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for file in FILES:
        (folder / file).write_bytes(pickle.dumps(batch(), protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}, protocol=2))
    return folder


def peak_memory() -> int:
    """The most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# CIFAR.


def with_value(opcodes: bytes) -> bytes:
    """A batch that has one more value, built by these opcodes."""
    content = pickle.dumps(batch(), protocol=2)
    return content.removesuffix(b".") + b"X\x05\x00\x00\x00extra" + opcodes + b"s."


def long(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


DTYPE = b"cnumpy\ndtype\n"
NDARRAY = b"cnumpy\nndarray\n"
UINT8 = DTYPE + b"X\x02\x00\x00\x00u1K\x00K\x01\x87R"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\n" + NDARRAY + b"K\x00\x85C\x01b\x87R"
# A type of 8 bytes that hides a reference in its fields.
HIDDEN = (
    DTYPE
    + b"X\x02\x00\x00\x00V8K\x00K\x01\x87R(K\x03X\x01\x00\x00\x00|NX\x01\x00\x00\x00f\x85}X\x01\x00\x00\x00f"
    + DTYPE
    + b"X\x02\x00\x00\x00O8K\x00K\x01\x87RK\x00\x86sK\x08K\x01K\x00tb"
)


@pytest.mark.parametrize(
    "opcodes",
    [
        pytest.param(NDARRAY + b"K\x08\x85" + UINT8 + b"\x86R", id="an array without contents"),
        pytest.param(NDARRAY + b"K\x01\x85X\x02\x00\x00\x00O8\x86R", id="an array of references"),
        pytest.param(NDARRAY + b"K\x01\x85" + HIDDEN + b"C\x08AAAAAAAA\x87R", id="references over bytes"),
        pytest.param(EMPTY + b"(K\x01K\x01\x85" + HIDDEN + b"\x89C\x08AAAAAAAAtb", id="references filled with bytes"),
        pytest.param(pickle.dumps(np.array([None, 1]), protocol=2)[2:-1], id="objects"),
        pytest.param(pickle.dumps(np.zeros(3), protocol=2)[2:-1], id="floats"),
        pytest.param(NDARRAY + b")\x81", id="NEWOBJ"),
        pytest.param(NDARRAY + b"N}X\x01\x00\x00\x00aK\x01s\x86b", id="BUILD of a class"),
        pytest.param(b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R", id="another codec"),
        pytest.param(b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R", id="eval"),
    ],
)
def test_a_batch_with_anything_but_arrays_of_bytes_is_refused(opcodes, tmp_path):
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(with_value(opcodes))
    with pytest.raises(CorruptDataError, match=r"data_batch_2: is truncated or damaged"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    "opcodes",
    [
        pytest.param(NDARRAY + long(6_000_000_000) + b"\x85" + UINT8 + b"\x86R", id="an array"),
        pytest.param(
            EMPTY + b"(K\x01" + long(2_000_000) + long(3072) + b"\x86" + UINT8 + b"\x89C\x01atb", id="the state of one"
        ),
        pytest.param(b"\x8e" + struct.pack("<Q", 6_000_000_000) + b"abc", id="bytes"),
        pytest.param(b"\x8d" + struct.pack("<Q", 6_000_000_000) + b"abc", id="a string"),
        pytest.param(b"\x96" + struct.pack("<Q", 6_000_000_000) + b"abc", id="a bytearray"),
    ],
)
def test_a_batch_that_declares_six_gigabytes_is_refused_before_they_are_allocated(opcodes, tmp_path):
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(with_value(opcodes))
    with (
        limited_memory(1 << 30),
        pytest.raises(CorruptDataError, match=r"data_batch_2: is truncated or damaged \(") as e,
    ):
        load("cifar10", tmp_path)
    assert not isinstance(e.value.__cause__, MemoryError)


@contextlib.contextmanager
def limited_memory(more: int):
    """This process cannot allocate more than so many bytes beyond what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_key_of_the_memo_takes_no_room(tmp_path):
    """Python's unpickler has a table as long as the largest key: 5 bytes of a file for 4 GB."""
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(with_value(b"Nr" + struct.pack("<I", 1 << 28)))
    with limited_memory(1 << 30):
        assert len(load("cifar10", tmp_path).train) == 5 * ROWS


def test_keys_nested_a_million_times_do_not_overflow_the_stack():
    """The hash of such a tuple ends the process, so it runs in another."""
    content = b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns."
    code = (
        "import sys; from pathlib import Path; from eigengrad.lab.data import cifar, CorruptDataError\n"
        "try: cifar._unpickle(sys.stdin.buffer.read(), Path('x'), '')\n"
        "except CorruptDataError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"has a tuple for a key" in done.stdout


@pytest.mark.parametrize("label", [10**300, -1, True, None, "a" * 1000, [[]], {}], ids=str)
def test_a_label_of_any_kind_is_named_in_short(label, tmp_path):
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(pickle.dumps(batch() | {"labels": [0, label, 1]}, protocol=2))
    with pytest.raises(CorruptDataError, match=r"data_batch_2: has the label ") as caught:
        load("cifar10", tmp_path)
    assert len(caught.value.problem) < 200


def test_a_batch_of_opcodes_without_end_is_refused(tmp_path):
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(b"\x80\x02" + b"}0" * 1_500_000 + b"}.")
    with pytest.raises(CorruptDataError, match=r"data_batch_2: is truncated or damaged"):
        load("cifar10", tmp_path)


def test_a_pipe_in_the_place_of_a_batch_is_not_waited_for(tmp_path):
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").unlink()
    os.mkfifo(folder / "data_batch_2")
    with time_limit(5), pytest.raises(CorruptDataError, match=r"data_batch_2: is not a regular file"):
        load("cifar10", tmp_path)


def test_a_batch_that_is_too_large_is_not_read(tmp_path):
    folder = write_cifar(tmp_path)
    with (folder / "data_batch_2").open("r+b") as file:
        file.truncate(6_000_000_000)  # a hole, which takes no room on the disk
    with limited_memory(1 << 30), pytest.raises(CorruptDataError, match=r"has 6,000,000,000 bytes; expected at most"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("where", ["member", "beside", "after", "header"])
def test_an_archive_that_unpacks_to_a_gigabyte_is_refused(where, tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    zeros = bytes(1 << 20)
    with gzip.open(archive, "wb", compresslevel=1) as file:
        if where != "after":
            name = "cifar-10-batches-py/test_batch" if where == "member" else "other"
            member = tarfile.TarInfo(name)
            member.size = 1 << 30
            if where == "header":
                member.type = tarfile.GNUTYPE_LONGNAME
            file.write(member.tobuf(tarfile.GNU_FORMAT))
        else:
            file.write(zeros)
        for _ in range(1024):
            file.write(zeros)
    with limited_memory(1536 << 20), pytest.raises(CorruptDataError, match=r"is truncated or damaged .* bytes"):
        load("cifar10", tmp_path)


class TooSlowError(BaseException):
    """No kind of error that anything catches."""


@contextlib.contextmanager
def time_limit(seconds: int):
    def late(*_: object) -> None:
        raise TooSlowError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Zips and folders.


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def write_zip(path: Path, method: int = zipfile.ZIP_DEFLATED, content: bytes | None = None) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for split in ("train", "val"):
            for name in ("ant", "bee"):
                archive.writestr(f"{split}/{name}/0.png", png() if content is None else content)
    return path


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


def test_a_jpeg_of_many_scans_is_not_decoded(tmp_path):
    """Each scan goes over all pixels: a megabyte with 300 of them took 17 s."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG", progressive=True, comment=b"\xff\xda" * 1000)
    whole = buffer.getvalue()
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    path = tmp_path / "a.jpg"
    appended = b"\xff\xda\x00\x02" * 1000  # behind the image, where telephones keep a film
    for scans, fits in ((30, True), (100, False)):
        path.write_bytes(whole[:-2] + scan * scans + whole[-2:] + appended)
        for read, error in (
            (lambda: Pictures(FolderFiles(tmp_path), ["a.jpg"]).read(0), CorruptDataError),
            (lambda: read_picture(path), PictureError),
        ):
            with contextlib.nullcontext() if fits else pytest.raises(error, match="more than 50 scans"):
                read()


def test_a_jpeg_of_many_segments_is_not_opened(tmp_path):
    whole = io.BytesIO()
    Image.new("RGB", (8, 8)).save(whole, "JPEG")
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8" + b"\xff\xfe\x00\x02" * 20_000 + whole.getvalue()[2:])
    with pytest.raises(CorruptDataError, match="10,000 segments"):
        Pictures(FolderFiles(tmp_path), ["a.jpg"]).read(0)


def test_an_image_that_declares_too_many_pixels_is_not_decoded(tmp_path):
    image = bytearray(png())
    image[16:24] = struct.pack(">II", 12_000, 12_000)
    image[29:33] = struct.pack(">I", zlib.crc32(image[12:29]))
    write_zip(tmp_path / "a.zip", content=bytes(image))
    with limited_memory(200 << 20), pytest.raises(CorruptDataError, match=r"is not an image that can be read"):
        Pictures(ZipFiles(tmp_path / "a.zip"), ["train/ant/0.png"]).read(0)


def test_an_image_of_a_format_that_starts_a_program_is_not_opened(tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "EPS")
    write_zip(tmp_path / "a.zip", content=buffer.getvalue())
    with pytest.raises(CorruptDataError, match=r"no known format"):
        Pictures(ZipFiles(tmp_path / "a.zip"), ["train/ant/0.png"]).read(0)


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


# What we write, and files of torch.save.


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


def test_weights_that_are_compressed_are_refused(tmp_path):
    """Of 14 MB torch would make 6.4 GB; torch.save never compresses."""
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pt")
    require_checksums(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as plain, zipfile.ZipFile(tmp_path / "b.pt", "w", 8) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(ValueError, match=r"its part .* is compressed, which torch\.save never does"):
        require_checksums(tmp_path / "b.pt")


def test_weights_whose_parts_lie_over_each_other_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data/0", bytes(100_000))
        first = archive.infolist()[0]
        for number in range(1, 100):
            again = zipfile.ZipInfo(f"archive/data/{number}")
            again.file_size, again.compress_size = first.file_size, first.compress_size
            again.CRC, again.header_offset = first.CRC, first.header_offset
            archive.filelist.append(again)
    with pytest.raises(ValueError, match=r"its parts have more bytes than the file"):
        require_checksums(tmp_path / "a.pt")


def test_a_pipe_in_the_place_of_weights_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.pt")
    with time_limit(5), pytest.raises(ValueError, match=r"it is not a regular file"):
        require_checksums(tmp_path / "a.pt")


# The report.


def outcome() -> Outcome:
    table = Table("numbers", "Numbers", ("method", "ours"), (("SVD", 1.5), ("PI", None)), {"epochs": "5"}, "A note.")
    return Outcome(
        *("table4", "Title", "small", {"data": "digits"}, "15 trials."),
        tables=(table,),
        figures=(Figure("curves", "Curves."),),
        findings=(Finding("A claim", "confirmed", "3 of 3."),),
        notes=("A note.",),
        about={"torch": "2"},
        day="2026-11-18",
    )


class Elements(HTMLParser):
    """The tags, attributes and addresses of a page, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}


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


DATA = outcome().to_dict()
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


# Fuzzers.


#: All opcodes of pickle that a reader could fall for, to be put anywhere.
OPCODES = (
    b"(.012FIJKLMNPQRSTUVXabcdeghijloprstu}])\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x90\x93\x94\x95\x96BC"
)
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 6_000_000_000)
JUNK: list[Any] = [
    *(None, True, -1, 10**400, 1e308, float("nan"), float("inf"), 2**62, 10**9),
    *("", "<script>", "\ud800", "../x", "{level.__class__}", "{level:>999999999}", "a" * 9999),
    *([], {}, [[]], {"": []}, [10**9]),
]


class Mutation:
    """Changes to the files of one seed; one that is not active leaves them as they are.

    Attributes:
        draw: the random numbers of this file.
    """

    def __init__(self, draw: random.Random, *, active: bool = True) -> None:
        self.draw, self.active = draw, active

    def chance(self, share: float) -> bool:
        return self.active and self.draw.random() < share

    def bytes(self, content: bytes) -> bytes:
        """With a few bytes changed, removed, repeated or inserted."""
        if not self.active:
            return content
        draw, changed = self.draw, bytearray(content)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
            # The ends of a file are where its structure is.
            size = max(len(changed), 1)
            near = min(size, draw.choice((64, 300, size)))
            place = draw.choice((draw.randrange(near), size - 1 - draw.randrange(near)))
            length = draw.choice((1, 1, 2, 4, 8, 30))
            kind = draw.randrange(7)
            if kind == 0 and place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            elif kind == 1:
                changed[place : place + length] = draw.randbytes(length)
            elif kind == 2:
                del changed[place : place + length]
            elif kind == 3:
                changed[place:place] = changed[place : place + length] * draw.choice((1, 2, 50))
            elif kind == 4:
                changed[place : place + 8] = struct.pack("<Q", draw.choice(NUMBERS))[: draw.choice((1, 2, 4, 8))]
            elif kind == 5:
                other = draw.randrange(size)
                changed[place : place + length] = changed[other : other + length]
            else:
                del changed[place:]
        return bytes(changed)

    def pickle(self, content: bytes) -> bytes:
        """The same, or with opcodes put in."""
        if self.chance(0.5):
            place = self.draw.randrange(len(content) + 1)
            opcodes = bytes(self.draw.choices(OPCODES, k=self.draw.choice((1, 2, 5))))
            content = content[:place] + opcodes + content[place:]
        return self.bytes(content) if self.chance(0.7) else content

    def json(self, data: Any) -> bytes:
        """As text, with some values changed, and then some bytes."""
        data = json.loads(json.dumps(data))
        for _ in range(self.draw.choice((0, 1, 2)) * self.active):
            inner = data
            while isinstance(inner, (dict, list)) and inner:
                key = self.draw.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
                if self.draw.random() < 0.4 or not isinstance(inner[key], (dict, list)):
                    inner[key] = copy.deepcopy(self.draw.choice(JUNK))
                    break
                inner = inner[key]
        content = json.dumps(data).encode()
        return self.bytes(content) if self.chance(0.5) else content


def fuzz_pickle(change: Mutation, folder: Path) -> None:
    protocol = change.draw.choice((1, 2, 3, 4, 5))
    content = pickle.dumps(batch(change.draw.choice((1, 2))), protocol=protocol)
    if protocol < 4 and change.draw.random() < 0.5:  # the names of old versions of numpy; later ones have their lengths
        content = content.replace(b"numpy._core", b"numpy.core")
    loaded = cifar._unpickle(change.pickle(content), Path("batch"), "")
    cifar._rows(loaded, "labels", 10, Path("batch"), "")


def fuzz_archive(change: Mutation, folder: Path) -> None:
    """The tar inside the gzip is changed, or one of the pickles inside the tar, or the gzip."""
    draw, buffer = change.draw, io.BytesIO()
    where = draw.choice(("pickle", "tar", "tar", "gzip"))
    victim = draw.choice((*FILES, "batches.meta"))
    with tarfile.open(fileobj=buffer, mode="w", format=draw.choice((0, 1, 2))) as tar:
        for name in (*FILES, "batches.meta"):
            content = META if name == "batches.meta" else ONE_ROW
            content = change.pickle(content) if where == "pickle" and name == victim else content
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    whole = buffer.getvalue()
    packed = gzip.compress(change.bytes(whole) if where == "tar" else whole, 1)
    archive = folder / "cifar-10-python.tar.gz"
    archive.write_bytes(change.bytes(packed) if where == "gzip" else packed)
    assert len(load("cifar10", folder).train) >= 1


ONE_ROW = pickle.dumps(batch(1), protocol=2)
META = pickle.dumps({"label_names": [str(i) for i in range(10)]}, protocol=2)


def fuzz_zip(change: Mutation, folder: Path) -> None:
    draw, buffer = change.draw, io.BytesIO()
    methods = (0, 8, 12, 14) if change.chance(0.3) else (0, 8)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("train/ant/0.png", "val/ant/0.png", "train/ä/1.png", "val/ä/2.png"):
            archive.writestr(name, png(), compress_type=draw.choice(methods))
    path = folder / "a.zip"
    path.write_bytes(change.bytes(buffer.getvalue()))
    files = ZipFiles(path)
    try:
        for name in files.files:
            with contextlib.suppress(DataError):
                files.read(name)
        assert len(load("folder", path).train) == 2 or change.active
    finally:
        files._zip.close()


def fuzz_tables(change: Mutation, folder: Path) -> None:
    """The tables of Tiny ImageNet: the classes of the test images, and the names of the classes."""
    tables = {
        "val/val_annotations.txt": b"a.png\tn1\t0\t0\t1\t1\nb.png\tn2\t0\t0\t1\t1\n",
        "words.txt": b"n1\tant\nn2\tbee\n",
    }
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("train/n1/images/0.png", "train/n2/images/0.png", "val/images/a.png", "val/images/b.png"):
            archive.writestr(f"tiny-imagenet-200/{name}", png())
        for name, content in tables.items():
            archive.writestr(f"tiny-imagenet-200/{name}", change.bytes(content))
    assert len(load("tiny_imagenet", path).test) >= 1


def fuzz_image(change: Mutation, folder: Path) -> None:
    buffer = io.BytesIO()
    kind = change.draw.choice(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"))
    Image.new("RGB", (9, 7), (1, 2, 3)).save(buffer, kind)
    (folder / "a.png").write_bytes(change.bytes(buffer.getvalue()))
    Pictures(FolderFiles(folder), ["a.png"]).read(0)


def fuzz_picture(change: Mutation, folder: Path) -> None:
    """What colour and style transfer read: more formats, 16 bits, transparency, orientation and colour profiles."""
    draw, buffer = change.draw, io.BytesIO()
    kind = draw.choice(("PNG", "PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000"))
    modes = {
        "PNG": ("RGB", "RGBA", "P", "L", "I;16"),
        "TIFF": ("RGB", "CMYK", "L", "I;16"),
        "JPEG": ("RGB", "CMYK", "L"),
    }
    mode = draw.choice(modes.get(kind, ("RGB",)))
    options: dict[str, Any] = {"icc_profile": PROFILE} if kind in ("PNG", "JPEG", "TIFF") and mode == "RGB" else {}
    if kind == "JPEG":
        exif = Image.Exif()
        exif[0x0112] = draw.randrange(1, 9)
        options["exif"] = exif
    Image.new(mode, (9, 7)).save(buffer, kind, **options)
    (folder / "a.png").write_bytes(change.bytes(buffer.getvalue()))
    read_picture(folder / "a.png")


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


def fuzz_outcome(change: Mutation, folder: Path) -> None:
    results = folder / "results" / "table4" / "small"
    results.mkdir(parents=True, exist_ok=True)
    (results / "outcome.json").write_bytes(change.json(DATA))
    page = build_page(folder / "results").read_text(encoding="utf-8")
    assert "script" not in Elements(page).tags
    Outcome.load(results)


def fuzz_result(change: Mutation, folder: Path) -> None:
    (folder / "result.json").write_bytes(change.json(change.draw.choice(RESULTS)))
    result = Result.load(folder)
    result.save(folder / "again.json")
    with ProgressTable(1, 0, visible=False) as table:
        table.ended(Run(result.config, folder), result)
    assert len(result.config.key()) > 0
    record(result)


RESULTS = [
    Result(
        *(Config(), "succeeded", None, {"test_error": [0.5, 0.25], "test_loss": [math.nan, 1.0]}, 0.25, 2, 0.25),
        gradient={"norm_mean": 1.0},
        changes=[{"step": 1, "what": "threads", "before": 1, "after": 2}],
    ).to_dict(),
    Result(Config(norm="iternorm"), "failed", Failure(1, 1, "divergence", None, "the loss has grown")).to_dict(),
]


def saved(content: Any, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def mutated_tensors(change: Mutation, content: bytes) -> bytes:
    """A file of torch.save, of which one part is changed and its checksum made right again; or any byte."""
    if not content.startswith(b"PK") or change.chance(0.3):
        return change.pickle(content)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(buffer, "w") as after:
        names = before.namelist()
        # Mostly the pickle, which says what the others are.
        victim = next(n for n in names if n.endswith("data.pkl")) if change.chance(0.8) else change.draw.choice(names)
        for name in names:
            part = before.read(name)
            after.writestr(name, change.pickle(part) if name == victim else part)
    return buffer.getvalue()


@functools.cache
def tensor_files() -> dict[str, bytes]:
    """Whole files of each kind, by what reads them."""
    state = {"a": torch.zeros(3), "b": torch.ones(2, 2, dtype=torch.float16), "c": torch.arange(4)[::2]}
    run = {
        **dict.fromkeys(("epoch", "batch", "step", "epoch_seconds", "seconds", "scaler"), 0),
        "format": 1,
        "settings": {"seed": 0},
        "curves": {"a": [1.0]},
        "best": (0.5, 1),
        "processes": [{}],
        "health": {},
        "modules": {"model": state},
        "optimizers": {},
        "schedulers": {},
    }
    config = TranslationConfig(width=2, group_size=2, blocks=1, critic_width=2, image_size=64)
    translator = {"settings": config.to_dict(), "modules": {"translator": Translator(config).state_dict()}}
    return {
        "weights": saved(state),
        "old weights": saved(state, legacy=True),
        "checkpoint": saved(run),
        "translator": saved(translator),
    }


def fuzz_weights(change: Mutation, folder: Path) -> None:
    kind = change.draw.choice(("weights", "old weights"))
    (folder / "a.pth").write_bytes(mutated_tensors(change, tensor_files()[kind]))
    tensors = style_weights._read(folder / "a.pth")
    assert all(tensor.numel() < 1000 for tensor in tensors.values())


def fuzz_checkpoint(change: Mutation, folder: Path) -> None:
    (folder / "step-0000000001.pt").write_bytes(mutated_tensors(change, tensor_files()["checkpoint"]))
    Checkpoints(folder).newest()


def fuzz_translator(change: Mutation, folder: Path) -> None:
    (folder / "last.pt").write_bytes(mutated_tensors(change, tensor_files()["translator"]))
    load_painter(folder)


def fuzz_codec(change: Mutation, folder: Path) -> None:
    """A description of weights, and the weights that it describes."""
    (folder / "codec.json").write_bytes(change.json(json.loads((SHIPPED / "codec.json").read_text())))
    if not (folder / "codec.pth").exists():
        shutil.copy(SHIPPED / "codec.pth", folder)
    load_codec(folder)


def fuzz_matrices(change: Mutation, folder: Path) -> None:
    """A matrix of torch.save or of numpy.save."""
    if change.chance(0.5):
        content = mutated_tensors(change, tensor_files()["weights"])
    else:
        buffer = io.BytesIO()
        np.save(buffer, np.eye(4, 5, dtype=np.float32))
        content = change.bytes(buffer.getvalue())
    (folder / "a.npy").write_bytes(content)
    assert read_matrices(folder / "a.npy").numel() < 1000


#: Each reader, and what it may raise.
READERS: dict[str, tuple[Callable[[Mutation, Path], None], tuple[type[Exception], ...]]] = {
    "pickle": (fuzz_pickle, (CorruptDataError,)),
    "archive": (fuzz_archive, (CorruptDataError, MissingDataError)),
    "zip": (fuzz_zip, (CorruptDataError, MissingDataError)),
    "tables": (fuzz_tables, (CorruptDataError, MissingDataError)),
    "image": (fuzz_image, (CorruptDataError,)),
    "picture": (fuzz_picture, (PictureError,)),
    "outcome": (fuzz_outcome, (ValueError,)),
    "result": (fuzz_result, (ValueError,)),
    "weights": (fuzz_weights, (WeightsError,)),
    "checkpoint": (fuzz_checkpoint, (CheckpointError,)),
    "translator": (fuzz_translator, (ValueError,)),
    "codec": (fuzz_codec, (WeightsError,)),
    "matrices": (fuzz_matrices, (MatrixFileError,)),
}
SLOW_FILES = 9_000  # of each reader: 117,000 together


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one of those it was raised from, is that an allocation failed."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def fuzz(reader: str, seed: int | str, files: int, seconds: float) -> dict[str, Any]:
    """Read mutated files; how many, how many of them were refused, and the longest that one took, in seconds."""
    function, errors = READERS[reader]
    refused, count, longest, end = 0, 0, 0.0, time.monotonic() + seconds
    folder = Path(tempfile.mkdtemp())
    os.fsync = lambda handle: None  # the disk is not what is tested
    tensor_files()
    with limited_memory(2 << 30):
        while count < files and time.monotonic() < end:
            began = time.monotonic()
            try:
                with time_limit(10):
                    function(Mutation(random.Random(f"{seed}-{count}")), folder)
            except errors as error:
                refused += 1
                if ran_out_of_memory(error):
                    print(f"{reader}: the file of seed {seed}, number {count}", file=sys.stderr)
                    raise RuntimeError("it was refused only because there was no memory for it") from error
            except BaseException:
                print(f"{reader}: the file of seed {seed}, number {count}", file=sys.stderr)
                raise
            longest = max(longest, time.monotonic() - began)
            count += 1
    shutil.rmtree(folder)
    return {"files": count, "refused": refused, "peak": peak_memory(), "longest": round(longest, 2)}


def fuzz_in_a_process(reader: str, seed: int, files: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-X", "faulthandler", __file__, reader, str(seed), str(files), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(reader, result)
    return result


@pytest.mark.parametrize("reader", READERS)
def test_the_files_that_are_mutated_are_accepted_as_they_were(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for number in range(20):
        READERS[reader][0](Mutation(random.Random(f"whole-{number}"), active=False), tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_mutated_files_are_read_or_refused(reader):
    result = fuzz_in_a_process(reader, seed=1, files=120, seconds=120)
    assert result["files"] == 120
    assert 0 < result["refused"] < result["files"], "mutations are too strong or too weak to test anything"
    assert result["peak"] < 2 << 30


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_hundred_thousand_mutated_files_are_read_or_refused(reader):
    result = fuzz_in_a_process(reader, seed=2, files=SLOW_FILES, seconds=1200)
    assert result["files"] == SLOW_FILES
    assert result["peak"] < 2 << 30


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 5])
def test_batches_of_full_size_are_read_in_a_gigabyte(protocol, tmp_path):
    """As large as CIFAR-10 itself: six files of 10,000 images, in an archive."""
    draw = np.random.default_rng(0)
    rows = 10_000
    archive = tmp_path / "cifar-10-python.tar.gz"
    expected = []
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name in (*FILES, "batches.meta"):
            data = draw.integers(0, 256, (rows, 3072), dtype=np.uint8)
            labels = draw.integers(0, 10, rows).tolist()
            whole = {"data": data, "labels": labels, "filenames": [f"{i}.png" for i in range(rows)]}
            content = META if name == "batches.meta" else pickle.dumps(whole, protocol=protocol)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            expected.append((data, labels))
    with limited_memory(1 << 30), time_limit(60):
        loaded = load("cifar10", tmp_path)
    assert (len(loaded.train), len(loaded.test)) == (5 * rows, rows)
    assert np.array_equal(loaded.test.images.numpy().reshape(rows, 3072), expected[5][0])
    assert loaded.train.labels[-rows:].tolist() == expected[4][1]


# What torch.load would believe.


def with_pickle(path: Path, pickled: bytes) -> Path:
    """A file of torch.save with another pickle in it."""
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(8)}))) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            after.writestr(name, pickled if name.endswith("data.pkl") else before.read(name))
    return path


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x08tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        pytest.param(
            b"\x80\x02cbuiltins\nbytearray\n" + long(6 << 30) + b"\x85R.", "it names builtins", id="bytearray"
        ),
        pytest.param(b"\x80\x02ctorch\nTensor\n" + long(6 << 30) + b"\x85R.", "it names torch.Tensor", id="Tensor"),
        pytest.param(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.", "it names posix.system", id="a program"),
        pytest.param(
            b"\x80\x02" + REBUILD + b"(" + STORAGE + b"K\x00" + long(6 << 30) + b"\x85K\x00\x85\x89NtR.",
            "has fewer numbers in the file",
            id="a stride of 0",
        ),
        pytest.param(b"\x80\x02]" + b"q\x00]h\x00ah\x00a" * 40 + b".", "", id="lists that double"),
    ],
)
def test_a_file_of_tensors_that_declares_more_than_it_holds_is_refused(pickled, message, tmp_path):
    path = with_pickle(tmp_path / "a.pt", pickled)
    with limited_memory(512 << 20), time_limit(5):
        if message:
            with pytest.raises(ValueError, match=message):
                load_tensors(path)
        else:
            load_tensors(path)


def test_a_file_of_the_old_format_that_declares_much_is_refused_before_it_is_allocated(tmp_path):
    content = saved({"a": torch.zeros(300)}, legacy=True)
    assert content.count(b"M,\x01") >= 2
    (tmp_path / "a.pt").write_bytes(content.replace(b"M,\x01", b"\x8a\x05" + (6 << 30).to_bytes(5, "little")))
    with limited_memory(512 << 20), pytest.raises(ValueError, match=r"a tensor declares 6442450944 elements"):
        load_tensors(tmp_path / "a.pt", allow_legacy=True)


def test_a_file_of_the_old_format_is_no_checkpoint(tmp_path):
    (tmp_path / "a.pt").write_bytes(saved({"a": torch.zeros(3)}, legacy=True))
    with pytest.raises(ValueError, match=r"not in the format of torch\.save since torch 1\.6"):
        load_tensors(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["../outside.pth", "/etc/passwd", "a/b.pth"])
def test_a_description_of_weights_cannot_name_files_elsewhere(name, tmp_path):
    description = json.loads((SHIPPED / "codec.json").read_text()) | {"encoder": name}
    (tmp_path / "codec.json").write_text(json.dumps(description))
    with pytest.raises(WeightsError, match=r"codec\.json: .*leaves its folder"):
        load_codec(tmp_path)


def test_a_picture_of_a_format_that_starts_a_program_is_not_opened(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(PictureError, match=r"this is no image"):
        read_picture(tmp_path / "a.png")


def test_a_picture_that_declares_many_pixels_in_a_few_bytes_is_not_decoded(tmp_path):
    image = bytearray(png())
    image[16:24] = struct.pack(">II", 9_000, 9_000)
    image[29:33] = struct.pack(">I", zlib.crc32(image[12:29]))
    (tmp_path / "a.png").write_bytes(image)
    with limited_memory(200 << 20), pytest.raises(PictureError, match=r"declares 9000 × 9000 pixels in \d+ bytes"):
        read_picture(tmp_path / "a.png")


def test_a_picture_that_is_empty_and_large_is_read(tmp_path):
    Image.new("1", (6000, 6000), 1).save(tmp_path / "a.png", optimize=True)
    assert read_picture(tmp_path / "a.png").pixels.min() == 1


def test_a_chunk_that_declares_gigabytes_takes_no_memory(tmp_path):
    """Python allocates what is asked for before it reads a file."""
    content = bytearray(png())
    content[33:37] = struct.pack(">I", 0x7FFFFFFF)  # the length of the chunk after the header
    (tmp_path / "a.png").write_bytes(content)
    with limited_memory(200 << 20):
        assert read_picture(tmp_path / "a.png").size == (8, 8)


def test_a_pipe_in_the_place_of_a_picture_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with time_limit(5), pytest.raises(PictureError, match=r"is not a regular file"):
        read_picture(tmp_path / "a.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow's, of damaged images
    print(json.dumps(fuzz(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
