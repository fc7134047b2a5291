"""Files of tensors: written atomically, and read without trusting them.

``torch.load(weights_only=True)`` calls no code of a file. But some of the functions that it allows allocate as much as
the file tells them to, and a tensor may have more elements than the file has numbers for it (with a stride of 0), so
that the first operation on it allocates any amount. These are refused here, and so is whatever is no plain value.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from .files import require_checksums, unwritable, write_atomically

__all__ = ["load_tensors", "save_tensors"]

#: What ``torch.save`` writes for dictionaries of tensors and of plain values. Other functions that ``weights_only``
#: allows (bytearray, torch.Tensor) take a size from the file and allocate it.
_GLOBALS = frozenset(
    {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        *(f"torch {kind}Storage" for kind in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char")),
        *(f"torch {kind}Storage" for kind in ("Byte", "Bool", "ComplexFloat", "ComplexDouble")),
    }
)

#: Opcodes of a file; a checkpoint of a ResNet-50 has 17,000.
_MOST_OPCODES = 2_000_000
#: Bytes of the structure of a file, without the numbers of its tensors.
_LARGEST_PICKLE = 64 << 20
_ZIP_BEGINS = b"PK\x03\x04"
#: The format before torch 1.6 begins with a number, a version, and a description of the machine; the names of the
#: storages come last.
_LEGACY_PICKLES = 5


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """``torch.save``, atomically; through memory, because torch names neither file nor reason when a disk is full."""
    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
    except (MemoryError, RuntimeError) as error:
        # Where the buffer cannot grow, torch closes its zip first, and complains of the position at which it is.
        if isinstance(error, MemoryError) or "unexpected pos" in str(error) or "allocate" in str(error):
            raise unwritable(path, MemoryError()) from error
        raise
    write_atomically(path, buffer.getbuffer())


def load_tensors(path: Path, *, allow_legacy: bool = False) -> Any:
    """Read a file of ``torch.save``: dictionaries, lists and tuples of numbers, strings and dense tensors.

    Args:
        path: of the file.
        allow_legacy: also read the format before torch 1.6, which has no checksums.

    Returns:
        The content, on the CPU.

    Raises:
        Exception: of any kind, as torch does; one of ours is a ValueError without the path. Nothing of the file was
            executed, and no more was allocated than the file has bytes, but for a constant factor.
    """
    require_checksums(path)
    with path.open("rb") as file:
        zipped = file.read(4) == _ZIP_BEGINS
        if not zipped and not allow_legacy:
            raise ValueError("it is not in the format of torch.save since torch 1.6")
        file.seek(0)
        _require_known_globals(file, zipped)
    content = torch.load(path, map_location="cpu", weights_only=True)
    _require_plain(content, path.stat().st_size)
    return content


def _require_known_globals(file: IO[bytes], zipped: bool) -> None:
    """Refuse a file that names a function or a class other than those in ``_GLOBALS``."""
    if zipped:
        with zipfile.ZipFile(file) as archive:
            pickles = [part for part in archive.infolist() if part.filename.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1:
                raise ValueError(f"it has {len(pickles)} parts with the name data.pkl; expected one")
            if pickles[0].file_size > _LARGEST_PICKLE:
                raise ValueError(
                    f"its data.pkl has {pickles[0].file_size:,} bytes; expected at most {_LARGEST_PICKLE:,}"
                )
            _require_known(io.BytesIO(archive.read(pickles[0])))
        return
    stream = io.BytesIO(file.read(_LARGEST_PICKLE))
    for number in range(_LEGACY_PICKLES):
        # In the fourth are the sizes of the tensors, which torch allocates before it looks for their numbers.
        _require_known(stream, file.seek(0, io.SEEK_END) if number == 3 else None)


def _require_known(stream: IO[bytes], largest: int | None = None) -> None:
    """Refuse a pickle that names what is not in ``_GLOBALS``, or has an integer above the largest."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if count >= _MOST_OPCODES:
            raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes")
        if opcode.name == "STACK_GLOBAL" or (opcode.name == "GLOBAL" and argument not in _GLOBALS):
            raise ValueError(f"it names {str(argument).replace(' ', '.')[:80]}, which files of tensors do not need")
        if largest is not None and isinstance(argument, int) and argument > largest:
            raise ValueError(f"a tensor declares {str(argument)[:40]} elements; the file has {largest:,} bytes")


def _require_plain(content: Any, size: int) -> None:
    """Refuse what is neither a dense tensor nor a plain value.

    Args:
        content: what ``torch.load`` returned.
        size: of the file in bytes, which is more than all its tensors can have.
    """
    waiting, seen, storages = [content], set(), dict[int, int]()
    while waiting:
        value = waiting.pop()
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            continue
        if id(value) in seen:  # a few bytes can nest lists that share their entries a million deep
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            _require_dense(value)
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
        else:
            raise ValueError(f"it holds a {type(value).__name__}; expected tensors and plain values")
    if sum(storages.values()) > size:
        raise ValueError(f"its tensors have more bytes than the file, which has {size:,}")


def _require_dense(tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"it holds a tensor that is {tensor.layout} on {tensor.device}; expected dense ones")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"a tensor of shape {str(tuple(tensor.shape))[:80]} has fewer numbers in the file")
