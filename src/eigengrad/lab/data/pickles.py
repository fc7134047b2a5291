"""Reading the pickles of CIFAR without Python's unpickler, which calls what a file names.

The opcodes are interpreted here. They can build dictionaries, lists, tuples, numbers, strings and bytes; the few names
of numpy that describe an array of bytes stand for :class:`ByteArray`. Nothing is imported, and nothing of numpy is
called with arguments from the file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["ByteArray", "read_pickle"]

#: Opcodes in one file. The largest file of CIFAR has about 250,000; at 100 bytes each, this many take 200 MB.
_MOST_OPCODES = 2_000_000

_MARK = object()


@dataclass
class ByteArray:
    """A uint8 array as a file describes it. Nothing is computed until :meth:`numpy` is called.

    Args:
        shape: as declared.
        content: its bytes; as a string, the bytes in Latin-1.
        order: "C" or "F".
    """

    shape: tuple[int, ...] | None = None
    content: bytes | str = b""
    order: str = "C"

    def set(self, shape: Any, dtype: Any, content: Any, order: Any) -> None:
        """Take what a file says, and refuse what is no uint8 array of as many bytes as there are."""
        if not isinstance(dtype, _Dtype):
            raise ValueError(f"an array has a {type(dtype).__name__} for its type")
        if dtype.name not in ("u1", "|u1", "uint8"):
            raise ValueError(f"an array has the type {dtype.name[:20]!r}; expected uint8")
        if not isinstance(shape, tuple) or len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("an array has a shape that is none")
        if not isinstance(content, (bytes, str)) or order not in ("C", "F"):
            raise ValueError("an array has a content that is no bytes")
        declared = 1
        for extent in shape:
            declared *= extent
        if declared != len(content):
            raise ValueError(f"an array declares the shape {str(shape)[:80]}, but has {len(content):,} bytes")
        self.shape, self.content, self.order = shape, content, order

    def numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The array, uint8, of the declared shape, in its own memory.

        Raises:
            ValueError: if the file never described it, or its string is not Latin-1.
        """
        if self.shape is None:
            raise ValueError("an array was never filled")
        content = self.content.encode("latin-1") if isinstance(self.content, str) else self.content
        flat = np.frombuffer(content, dtype=np.uint8)
        order: Literal["F", "C"] = "F" if self.order == "F" else "C"
        array: np.ndarray[Any, np.dtype[np.uint8]] = flat.reshape(self.shape, order=order).copy()
        return array


@dataclass(frozen=True)
class _Dtype:
    """The name of an element type."""

    name: str


@dataclass(frozen=True)
class _Global:
    """A name that a file may mention. It stands for itself, and is never imported."""

    name: str


def _new_array(arguments: tuple[Any, ...]) -> ByteArray:
    """``_reconstruct(ndarray, (0,), b"b")``: an array to be filled by BUILD."""
    if not arguments or arguments[0] != _Global("ndarray"):
        raise ValueError("an array is of a class of its own")
    return ByteArray()


def _array_of_buffer(arguments: tuple[Any, ...]) -> ByteArray:
    """``_frombuffer(content, dtype, shape, order)``, as protocol 5 has it."""
    content, dtype, shape, order = arguments
    array = ByteArray()
    array.set(shape, dtype, content, order)
    return array


def _dtype(arguments: tuple[Any, ...]) -> _Dtype:
    if not arguments or not isinstance(arguments[0], str):
        raise ValueError("an array has a type without a name")
    return _Dtype(arguments[0])


def _encode(arguments: tuple[Any, ...]) -> str:
    """``_codecs.encode(text, "latin1")``: bytes, which stay the string that they are in the file."""
    text, encoding = arguments
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes are written in an unknown way")
    return text


#: What a file may name; numpy has moved its functions in the course of time.
_GLOBALS = {
    ("numpy", "ndarray"): _Global("ndarray"),
    ("numpy", "dtype"): _Global("dtype"),
    ("numpy.core.multiarray", "_reconstruct"): _Global("_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"): _Global("_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"): _Global("_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"): _Global("_frombuffer"),
    ("_codecs", "encode"): _Global("encode"),
}

#: What REDUCE does for those that are functions.
_FUNCTIONS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "dtype": _dtype,
    "_reconstruct": _new_array,
    "_frombuffer": _array_of_buffer,
    "encode": _encode,
}

#: Opcodes that push their argument. LONG4, whose numbers can have millions of digits, is not among them.
_VALUES = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1"),
        *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(content: bytes) -> Any:
    """Read a pickle, whose arrays become :class:`ByteArray`.

    Args:
        content: of the file; any protocol, but Python 2's strings only as protocols 1 and 2 write them (Latin-1).

    Raises:
        ValueError: for a damaged file, and for one that would do anything but build such data.
    """
    return _Machine().run(content)


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Interpret the opcodes up to STOP."""
        # pickletools checks each declared length against what is left of the file before it takes it.
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
                if count >= _MOST_OPCODES:
                    raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes")
                if opcode.name == "STOP":
                    return self._pop()
                self._step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"its opcodes make no sense ({type(error).__name__}: {error})") from error
        raise ValueError("it has no end")

    def _pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("its opcodes make no sense (a mark instead of a value)")
        return value

    def _pop_to_mark(self) -> list[Any]:
        """The values above the last mark, which goes with them."""
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _top(self, kind: type[Any]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"it adds to a {type(self.stack[-1]).__name__}; expected a {kind.__name__}")
        return self.stack[-1]

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack.append(tuple([self._pop() for _ in range(_TUPLES[name])][::-1]))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_to_mark()))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "LIST":
            stack.append(self._pop_to_mark())
        elif name in ("APPEND", "APPENDS"):
            values = [self._pop()] if name == "APPEND" else self._pop_to_mark()
            self._top(list).extend(values)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name in ("DICT", "SETITEM", "SETITEMS"):
            values = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._pop_to_mark()
            if name == "DICT":
                stack.append({})
            self._set_items(values)
        elif name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
            stack.append(_global(module, attribute))
        elif name == "STACK_GLOBAL":
            attribute, module = self._pop(), self._pop()
            stack.append(_global(module, attribute))
        elif name == "REDUCE":
            arguments, function = self._pop(), self._pop()
            if not isinstance(function, _Global) or not isinstance(arguments, tuple):
                raise ValueError(f"it would call a {type(function).__name__}, which is refused")
            stack.append(_FUNCTIONS[function.name](arguments))
        elif name == "BUILD":
            self._build(self._pop())
        elif name == "BYTEARRAY8":
            stack.append(bytes(argument))
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it has the opcode {name}, which is refused")

    def _set_items(self, values: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            # Other keys could be nested without end, and Python's hash of those overflows the stack.
            if type(key) not in (str, bytes, int):
                raise ValueError(f"it has a {type(key).__name__} for a key")
            target[key] = value

    def _build(self, state: Any) -> None:
        """Fill an array; what BUILD says of a type (its byte order) does not matter for single bytes."""
        target = self.stack[-1]
        if isinstance(target, ByteArray):
            _, shape, dtype, fortran, content = state
            target.set(shape, dtype, content, "F" if fortran else "C")
        elif not isinstance(target, _Dtype):
            raise ValueError(f"it would change a {type(target).__name__}, which is refused")


def _global(module: Any, name: Any) -> _Global:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it would call something without a name, which is refused")
    if (module, name) not in _GLOBALS:
        raise ValueError(f"it would call {module[:80]}.{name[:80]}, which is refused")
    return _GLOBALS[module, name]
