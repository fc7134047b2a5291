"""Files of torch.save of unknown origin: whatever they hold, they are read or refused by name."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import pytest
import torch

from eigengrad.lab.files import require_checksums
from eigengrad.lab.style.weights import SHIPPED, WeightsError, load_codec
from eigengrad.lab.tensors import load_tensors
from limits import limited_memory, time_limit
from sample_files import long, saved


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
