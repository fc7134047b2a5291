"""Matrices from files of others, ``.pt`` of torch.save and ``.npy`` of NumPy: not executed, and not trusted."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .files import read_regular_file
from .tensors import load_tensors

__all__ = ["MatrixFileError", "read_matrices"]

#: Bytes of a file.
LARGEST = 256 << 20
_NPY_BEGINS = b"\x93NUMPY"
#: Names that an error lists.
_LISTED = 12


class MatrixFileError(ValueError):
    """A file that holds no matrix that can be used; the message names it and what was expected."""


def read_matrices(path: Path, key: str | None = None) -> Tensor:
    """A matrix, or a batch of them, (..., m, n), from a file.

    Args:
        path: of ``torch.save`` (a tensor, or dictionaries and lists of them) or ``numpy.save``; told by its content.
        key: which of several tensors, as ``layer.weight`` or ``states.0``.

    Returns:
        A floating-point or complex tensor; whole numbers become float64.

    Raises:
        MatrixFileError: if the file is damaged or too large, holds objects, or no matrix under this key.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_NPY_BEGINS))
        if path.stat().st_size > LARGEST:
            raise ValueError(f"has {path.stat().st_size:,} bytes; expected at most {LARGEST:,}")
        content = _read_npy(path) if beginning == _NPY_BEGINS else load_tensors(path)
    except FileNotFoundError:
        raise MatrixFileError(f"{path}: there is no such file") from None
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise MatrixFileError(
            f"{path}: damaged, or no file of numpy.save or torch.save with tensors alone ({reason})"
        ) from error
    try:
        return _numbers(_chosen(dict(_tensors(content)), key))
    except ValueError as error:
        raise MatrixFileError(f"{path}: {error}") from error


def _read_npy(path: Path) -> Tensor:
    """The array of a ``.npy`` file, whose declared size is compared with the file's before anything is allocated."""
    content = read_regular_file(path, LARGEST)
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"it is of version {version} of the format; expected 1.0 or 2.0")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject or dtype.kind not in "fciu":
        raise ValueError(f"it holds {dtype}; expected numbers")
    left = len(content) - file.tell()
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"it declares shape {str(shape)[:80]} of {dtype}, but has {left:,} bytes")
    array = np.frombuffer(content, dtype, offset=file.tell()).reshape(shape, order="F" if fortran else "C")
    if dtype.kind in "iu" or dtype.itemsize > 16 or (dtype.kind == "f" and dtype.itemsize > 8):
        array = array.astype(np.complex128 if dtype.kind == "c" else np.float64)  # what torch has no type for
    return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))


def _tensors(content: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a file with its key, without recursion: a few bytes can nest lists a million deep."""
    waiting, seen = [("", content)], set[int]()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Tensor):
            yield name, value
            continue
        if not isinstance(value, dict | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        waiting += [(f"{name}.{key}" if name else str(key), item) for key, item in reversed(list(items))]


def _chosen(tensors: dict[str, Tensor], key: str | None) -> Tensor:
    """The tensor under a key, or the only one that is a matrix."""
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.ndim >= 2}
    names = [f"{name or '(the whole)'} {tuple(tensor.shape)}" for name, tensor in matrices.items()]
    listed = ", ".join(names[:_LISTED]) + (f", … ({len(names)} in all)" if len(names) > _LISTED else "")
    if key is not None:
        if key not in matrices:
            raise ValueError(f"no matrix is called {key!r}; there are: {listed or 'none'}")
        return matrices[key]
    if not matrices:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in list(tensors.values())[:_LISTED])
        raise ValueError(f"expected a matrix, of shape (..., m, n); got {shapes or 'no tensor at all'}")
    if len(matrices) > 1:
        raise ValueError(f"holds several matrices; say which with a key: {listed}")
    return next(iter(matrices.values()))


def _numbers(matrix: Tensor) -> Tensor:
    """The matrix in a type that has eigenvalues."""
    if matrix.dtype is torch.bool:
        raise ValueError("holds truth values; expected numbers")
    return matrix if matrix.is_floating_point() or matrix.is_complex() else matrix.double()
