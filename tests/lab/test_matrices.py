"""Matrices from files: every type that NumPy and torch write, and what is refused; ``eigengrad doctor`` over them."""

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eigengrad import diagnose
from eigengrad.lab.app import app
from eigengrad.lab.matrices import MatrixFileError, read_matrices


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16", "<i4", ">i8", "u1", np.longdouble])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_gives_the_numbers_of_numpy(tmp_path, dtype, order):
    array = np.array([[1, 2, 3], [4, 5, 6]], dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    found = read_matrices(tmp_path / "a.npy")
    assert np.array_equal(found.numpy(), array)
    assert found.is_floating_point() or found.is_complex()


def test_pt_gives_the_tensor(tmp_path):
    A = torch.randn(2, 3, 3, dtype=torch.complex64)
    torch.save(A, tmp_path / "a.pt")
    assert torch.equal(read_matrices(tmp_path / "a.pt"), A)


def test_a_key_chooses_among_several(tmp_path):
    state = {"layer": {"weight": torch.eye(2), "bias": torch.ones(2)}, "others": [torch.zeros(3, 3)], "epoch": 3}
    torch.save(state, tmp_path / "a.pt")
    assert read_matrices(tmp_path / "a.pt", "others.0").shape == (3, 3)
    with pytest.raises(MatrixFileError, match=r"several matrices.*layer\.weight \(2, 2\), others\.0 \(3, 3\)"):
        read_matrices(tmp_path / "a.pt")
    with pytest.raises(MatrixFileError, match=r"no matrix is called 'layer\.bias'"):
        read_matrices(tmp_path / "a.pt", "layer.bias")


def test_the_only_matrix_needs_no_key(tmp_path):
    torch.save({"weight": torch.eye(2), "bias": torch.ones(2)}, tmp_path / "a.pt")
    assert torch.equal(read_matrices(tmp_path / "a.pt"), torch.eye(2))


class _Command:
    def __reduce__(self):
        return os.system, ("touch executed",)


def npy(header: bytes, data: bytes = b"") -> bytes:
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zipped_pickle(value) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, 2))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"\x93NUMPY", "damaged"),
        (b"\x93NUMPY\x09\x00", "version"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"), "declares shape"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }", b"8bytes.."), "declares shape"),
        (npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 2), }", pickle.dumps(_Command())), "holds object"),
        (npy(b"{'descr': '<U4', 'fortran_order': False, 'shape': (1, 1), }", b"a" * 16), "expected numbers"),
        (npy(b"__import__('os').system('touch executed')"), "damaged"),
        (pickle.dumps(_Command()), "damaged"),
        (zipped_pickle(_Command()), "damaged"),
        (b"PK\x03\x04 and nothing else", "damaged zip"),
        (b"<html>not a matrix</html>", "damaged"),
    ],
)
def test_what_is_no_matrix_is_refused_and_never_executed(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(MatrixFileError, match=message) as error:
        read_matrices(tmp_path / "a.npy")
    assert "a.npy" in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_wrong_contents_are_explained(tmp_path):
    for value, message in ((torch.ones(3), r"expected a matrix.*got \(3,\)"), ({"a": 1}, "no tensor at all")):
        torch.save(value, tmp_path / "a.pt")
        with pytest.raises(MatrixFileError, match=message):
            read_matrices(tmp_path / "a.pt")
    torch.save(torch.ones(2, 2, dtype=torch.bool), tmp_path / "a.pt")
    with pytest.raises(MatrixFileError, match="truth values"):
        read_matrices(tmp_path / "a.pt")
    with pytest.raises(MatrixFileError, match="no such file"):
        read_matrices(tmp_path / "nothing.pt")


def test_files_that_are_too_large_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("eigengrad.lab.matrices.LARGEST", 100)
    np.save(tmp_path / "a.npy", np.eye(9))
    with pytest.raises(MatrixFileError, match="expected at most 100"):
        read_matrices(tmp_path / "a.npy")


def test_doctor_prints_the_diagnosis_in_80_columns(tmp_path):
    A = torch.diag(torch.tensor([1.0, 1.0, 4.0]))
    torch.save(A, tmp_path / "matrix.pt")
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "matrix.pt")])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'matrix.pt'}: {diagnose(A)}\n"


def test_doctor_explains_what_it_cannot_read(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"nothing")
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "a.pt")])
    assert done.exit_code == 2
    assert "a.pt: damaged" in done.output
    assert "Traceback" not in done.output
