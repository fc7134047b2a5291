"""A second device in Python: tensors on "second:0" are computed on the CPU, and behave as those of a GPU would.

Mixing devices is an error, addresses are refused, and whatever would make the host wait for a GPU is written down in
:data:`WAITS`. It is a tensor subclass on torch's PrivateUse1 key; FakeTensor would need a build of torch with CUDA.

    from second_device import DEVICE, no_waiting
    with no_waiting():
        f(x.to(DEVICE))
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import eigengrad._execution

__all__ = ["DEVICE", "WAITS", "DeviceTensor", "no_waiting"]

aten = torch.ops.aten

#: Operators for which the host waits, whatever they are given. (torch.linalg's decompositions check their errors there
#: too: that is torch's own waiting, which the Triton kernels do without.)
_WAITING = frozenset(
    {
        aten._local_scalar_dense.default,
        aten.is_nonzero.default,
        aten.nonzero.default,
        aten.equal.default,
        aten.masked_select.default,
        aten._unique2.default,
        aten._linalg_check_errors.default,
    }
)
_COPIES = frozenset({aten.copy_.default, aten._to_copy.default, aten._copy_from.default})
_INDEXING = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default})

#: What has waited: the operator, and the lines of eigengrad that led to it.
WAITS: list[tuple[str, str]] = []


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Module:
    """What torch asks of ``torch.second``."""

    is_initialized = is_available = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])


_setup_privateuseone_for_python_backend("second", hook=_Hooks(), backend_module=_Module())
torch._C._set_multithreading_enabled(False)  # the engine's thread for this device is never joined: abort at exit
DEVICE = torch.device("second", 0)


def _place() -> str:
    frames = [f for f in traceback.extract_stack() if "/eigengrad/" in f.filename]
    return " < ".join(f"{f.filename.split('/eigengrad/')[-1]}:{f.lineno}" for f in reversed(frames[-3:])) or "a test"


class DeviceTensor(torch.Tensor):
    """A tensor on the second device, with its numbers in a CPU tensor."""

    _data: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> DeviceTensor:
        data = data.resolve_conj().resolve_neg()  # a wrapper cannot say that it is conjugated
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            data.shape,
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=DEVICE,
        )
        self._data = data
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"DeviceTensor({self._data})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copy = self.detach().clone().requires_grad_(self.requires_grad)
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copy, self.requires_grad) if is_parameter else copy
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _COPIES:
            _refuse_mixed_devices(func, args, kwargs)
        target = torch.device(kwargs.get("device") or DEVICE).type
        if target == "meta":  # shapes alone, for which nobody waits
            return func(*tree_map_only(DeviceTensor, lambda t: t._data, args), **kwargs)
        to_host = func is aten._to_copy.default and target == "cpu"
        _note_waiting(func, args, kwargs, to_host)
        arguments, options = tree_map_only(DeviceTensor, lambda t: t._data, (args, kwargs))
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        options.pop("pin_memory", None)
        out = func(*arguments, **options)
        if func is aten.copy_.default:
            return args[0]
        if to_host:
            return out
        inference = torch.is_inference_mode_enabled()
        # Views of ordinary tensors are ordinary in inference mode as well.
        views = inference and any(isinstance(t, DeviceTensor) and not t.is_inference() for t in args)
        views = views and any(a.alias_info is not None for a in func._schema.arguments)
        with torch.inference_mode(inference and not views):
            wrapped = tree_map_only(torch.Tensor, DeviceTensor, out)
        if inference:  # where the counter of a view cannot be shared
            return args[0] if func._schema.is_mutable and "out" not in kwargs else wrapped
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _refuse_mixed_devices(func: Any, args: Any, kwargs: Any) -> None:
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor) and not isinstance(x, DeviceTensor) and (x.ndim > 0 or not x.is_cpu):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got one on {x.device} of shape "
                f"{tuple(x.shape)}; at {_place()}"
            )


def _note_waiting(func: Any, args: Any, kwargs: Any, to_host: bool) -> None:
    waits = func in _WAITING or to_host
    if func is aten.copy_.default:
        here, there = (isinstance(x, DeviceTensor) for x in args[:2])
        waits = here != there and not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking")
    if func in _INDEXING:  # a mask has to be counted
        waits = any(index is not None and index.dtype == torch.bool for index in args[1])
    if waits:
        WAITS.append((str(func), _place()))


@torch.library.impl("aten::_copy_from", "privateuseone")
def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    ours, theirs = isinstance(target, DeviceTensor), isinstance(source, DeviceTensor)
    if ours != theirs and not non_blocking:
        WAITS.append(("aten._copy_from", _place()))
    (target._data if ours else target).copy_(source._data if theirs else source)
    return target


def _on_host(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in ("device", "pin_memory", "layout") and v is not None}


def _constructor(function: Any) -> Any:
    return lambda *arguments, **options: DeviceTensor(function(*arguments, **_on_host(options)))


torch.library.impl("aten::empty.memory_format", "privateuseone")(_constructor(torch.empty))
torch.library.impl("aten::empty_strided", "privateuseone")(_constructor(torch.empty_strided))
torch.library.impl("aten::triu_indices", "privateuseone")(_constructor(torch.triu_indices))
torch.library.impl("aten::eye", "privateuseone")(_constructor(torch.eye))
torch.library.impl("aten::eye.m", "privateuseone")(_constructor(torch.eye))
torch.library.impl("aten::tril_indices", "privateuseone")(_constructor(torch.tril_indices))
torch.library.impl("aten::_efficientzerotensor", "privateuseone")(_constructor(torch.zeros))  # tangents of constants

_autocast = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")  # autocast can be on, but casts nothing
_autocast.fallback(torch.library.fallthrough_kernel)

eigengrad._execution._PLAIN = (*eigengrad._execution._PLAIN, DeviceTensor)  # it stands for a plain tensor


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Fail if the host has waited for the device meanwhile."""
    WAITS.clear()
    yield
    waits, WAITS[:] = sorted(set(WAITS)), []
    assert not waits, "the host waits for the device: " + "; ".join(f"{name} at {place}" for name, place in waits)
