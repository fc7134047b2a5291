"""CIFAR files of unknown origin: whatever they hold, they are read or refused by name."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from eigengrad.lab.data import CorruptDataError, load
from limits import limited_memory, time_limit
from sample_files import FILES, META, ROWS, batch, long, write_cifar


def with_value(opcodes: bytes) -> bytes:
    """A batch that has one more value, built by these opcodes."""
    content = pickle.dumps(batch(), protocol=2)
    return content.removesuffix(b".") + b"X\x05\x00\x00\x00extra" + opcodes + b"s."


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
