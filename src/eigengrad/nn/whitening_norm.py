"""The module behind every whitening layer: parameters, running statistics, and the two modes."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import Self

from .._compat import is_exporting, version, without_dispatch_modes
from .._execution import can_read, not_traced
from ..arguments import require_integer, require_number, require_positive
from ..errors import LinAlgError, unknown_choice
from ..matmul import precise_matmul
from ..precision import REAL, full_precision, widen
from .distributed import warn_if_unsynchronised
from .group_whitening import affine_map, group_whiten

__all__ = ["WhiteningNorm"]

#: What running statistics are averages of: covariances, from which S is derived, or S itself.
AVERAGES = ("covariance", "whitening")


class WhiteningNorm(nn.Module):
    """What the whitening layers share: parameters, running statistics and the two modes.

    A subclass says, in :meth:`whitening_matrices`, how covariances become whitening matrices.
    """

    num_batches_tracked: Tensor | None
    running_mean: Tensor | None
    running_covariance: Tensor | None
    running_whitening: Tensor | None
    _dimensions: tuple[int, ...] = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-2,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        group_size: int | None = None,
        num_groups: int | None = None,
        average: str = "covariance",
        process_group: Any = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        if average not in AVERAGES:
            raise unknown_choice("average", average, AVERAGES)
        require_integer(owner, "num_features", num_features, minimum=1)
        require_positive(owner, "eps", eps)
        if momentum is not None:
            require_number(owner, "momentum", momentum)
        if dtype is not None and dtype not in REAL:
            raise TypeError(f"{owner}: dtype must be a floating-point type; got {dtype!r}")
        if isinstance(process_group, str) and process_group not in ("world", "local"):
            raise ValueError(
                f'{owner}: process_group must be a process group or "world", or "local" for none; got {process_group!r}'
            )
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.group_size, self.num_groups = _grouping(owner, num_features, group_size, num_groups)
        self.process_group = process_group
        self.average = average
        options: Any = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(num_features, **options)) if affine else None
        self.bias = nn.Parameter(torch.empty(num_features, **options)) if affine and bias else None
        if track_running_stats:
            self.register_buffer("running_mean", torch.empty(num_features, **options))
            shape = (self.num_groups, self.group_size, self.group_size)
            self.register_buffer("running_covariance", torch.empty(shape, **options))
            if average == "whitening":
                self.register_buffer("running_whitening", torch.empty(shape, **options))
            else:
                self.running_whitening = None
            self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long, device=device))
        else:
            self.running_mean = self.running_covariance = self.running_whitening = self.num_batches_tracked = None
        self._cached: _Derived | None = None
        self.reset_parameters()

    def train(self, mode: bool = True) -> Self:
        """As ``nn.Module.train``. Evaluation mode derives S at once, so that an export has it as a constant.

        (If statistics are loaded or changed afterwards, call ``eval()`` again, or the export derives S each time.)
        """
        super().train(mode)
        if self.running_covariance is not None and self.running_covariance.device.type != "cpu":
            self._cached = None  # writes that torch does not count (inference mode, .data) cannot be seen there
        if not mode and self.running_covariance is not None and can_read(self.running_covariance):
            with contextlib.suppress(LinAlgError):  # statistics that are not finite are for the first use to refuse
                self._running_whitening()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """As ``nn.Module._apply``, which ``.to()`` and the like end in: S is derived anew from what it leaves."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._cached = None
        return self.train(self.training)

    def whitening_matrices(self, covariance: Tensor) -> Tensor:
        """Whitening matrices of covariances: (groups, d, d) to the same."""
        raise NotImplementedError

    def _recipe(self) -> tuple[Any, ...]:
        """What S depends on besides the covariance."""
        return (self.eps,)

    def _root_eps(self) -> float | None:
        """ε, where S is the inverse square root of M + εI with its exact gradient: kernels know that one. Else None."""
        return None

    def _iterated_eps(self) -> float | None:
        """ε, where S approximates the inverse square root of M + εI by iterations that no rule watches. Else None."""
        return None

    def reset_running_stats(self) -> None:
        """Mean 0, covariance I (and S = I, where it is averaged), no batches seen."""
        if self.running_mean is None or self.running_covariance is None or not self.track_running_stats:
            return
        self.running_mean.zero_()
        identity = torch.eye(self.group_size, dtype=self.running_covariance.dtype, device=self.running_mean.device)
        self.running_covariance.copy_(identity.expand_as(self.running_covariance))
        if self.running_whitening is not None:
            self.running_whitening.copy_(identity.expand_as(self.running_whitening))
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, and :meth:`reset_running_stats`."""
        self.reset_running_stats()
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Whiten (N, C, *spatial) by the batch's statistics in training, by the running ones in evaluation."""
        self._check_input(x)
        self._check_parameter("weight", self.weight, x)
        self._check_parameter("bias", self.bias, x)
        if self.training or self.running_mean is None:
            return self._by_batch(x)
        with full_precision(x):
            A, c = self.evaluation_map()
            return affine_map(x, A, c)

    def evaluation_map(self) -> tuple[Tensor, Tensor]:
        """(A, c) of the evaluation mode's y = A x + c: (groups, d, d) and (C,), differentiable in weight and bias."""
        if self.running_mean is None:
            raise RuntimeError(
                f"{type(self).__name__}: no running statistics, so no fixed map (track_running_stats=False)"
            )
        S, column = self._running_whitening(), (self.num_groups, self.group_size, 1)
        A = S.clone() if self.weight is None else widen(self.weight).view(column) * S
        c = -precise_matmul(A, widen(self.running_mean).view(column)).flatten()
        return A, c if self.bias is None else c + widen(self.bias)

    def _running_whitening(self) -> Tensor:
        """S of the running covariance, derived once and kept until the covariance changes; or the running S itself."""
        if self.average == "whitening" and self.running_whitening is not None:
            return widen(self.running_whitening.detach())
        source = self.running_covariance
        assert source is not None
        exporting = is_exporting() and not torch.compiler.is_dynamo_compiling()
        if exporting and self._cached is not None and self._cached.is_unchanged(self._recipe()):
            return self._cached.matrices
        if torch.compiler.is_compiling():
            return self.whitening_matrices(widen(source.detach())).detach()
        with not_traced():  # S is a constant
            if not can_read(source):
                return self.whitening_matrices(widen(source.detach())).detach()
            if self._cached is None or not self._cached.is_of(source, self._recipe()):
                with torch.inference_mode(False), torch.no_grad():  # what is kept must be of use outside as well
                    seen = source.detach().clone()
                    matrices = self.whitening_matrices(widen(seen))
                self._cached = _Derived(matrices, self._recipe(), source, version(source), seen)
            return self._cached.matrices

    def __setattr__(self, name: str, value: Any) -> None:
        """As ``nn.Module.__setattr__``. Another covariance in place of the running one means another S."""
        if name == "running_covariance":
            self.__dict__["_cached"] = None
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """As ``nn.Module.register_buffer``, and the same."""
        if name == "running_covariance":
            self.__dict__["_cached"] = None
        super().register_buffer(name, tensor, persistent)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be derived."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_cached": None}

    def _by_batch(self, x: Tensor) -> Tensor:
        count = x.numel() // max(x.shape[1], 1)
        synchronised = self._synchronised()
        if self.process_group is None and self.training:
            warn_if_unsynchronised()
        if count == 1 and not synchronised:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
        group = self._group() if synchronised else None
        parameters = self.weight, self.bias, self.num_groups
        result = group_whiten(x, *parameters, self.whitening_matrices, group, self._root_eps(), self._iterated_eps())
        # A count over several processes is on the device, and is not looked at.
        if self.training and (isinstance(result.points, Tensor) or result.points > 0):
            self._track(result.mean, result.covariance, result.points)
        return result.output

    def _track(self, mean: Tensor, covariance: Tensor, points: int | Tensor) -> None:
        """Average the statistics of a batch in, unless it has no points."""
        running, moments, batches = self.running_mean, self.running_covariance, self.num_batches_tracked
        if running is None or moments is None or not self.track_running_stats:
            return
        some = points > 0 if isinstance(points, Tensor) else None
        if batches is not None:
            batches.add_(1 if some is None else some)
        statistics = [(running, mean), (moments, covariance)]
        if self.running_whitening is not None:  # beside the covariance, so that one run can be evaluated by either
            with torch.no_grad():
                statistics.append((self.running_whitening, self.whitening_matrices(covariance)))
        for average, new in statistics:
            share: Any = self.momentum
            if share is None:
                share = 0.0 if batches is None else batches.clamp(min=1).to(widen(average).dtype).reciprocal()
            if some is not None:
                share = share * some.to(widen(average).dtype)
            weight = share.to(average.dtype) if isinstance(share, Tensor) else share
            average.lerp_(new if new.dtype is average.dtype else new.to(average.dtype), weight)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Let every whitening layer of a model share its statistics between processes while training.

        What ``torch.nn.SyncBatchNorm.convert_sync_batchnorm`` does for the batch norms of torch, and for them alone: a
        model that has both kinds needs both calls, in either order. Nothing is replaced; the layers' ``process_group``
        is set, whichever subclass this is called on.

        Args:
            module: a model, or a layer.
            process_group: of ``torch.distributed``; ``None`` is all processes.

        Returns:
            The module itself.

        >>> import torch
        >>> from eigengrad.nn import DecorrelatedBatchNorm2d
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), DecorrelatedBatchNorm2d(8))
        >>> DecorrelatedBatchNorm2d.convert_sync_batchnorm(model)[1].process_group
        'world'
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"convert_sync_batchnorm: module must be an nn.Module; got {type(module).__name__}")
        for layer in module.modules():
            if isinstance(layer, WhiteningNorm):
                layer.process_group = "world" if process_group is None else process_group
        return module

    def _synchronised(self) -> bool:
        wanted = self.process_group not in (None, "local") and self.training
        wanted = wanted and dist.is_available() and dist.is_initialized()
        return wanted and dist.get_world_size(self._group()) > 1

    def _group(self) -> Any:
        return dist.group.WORLD if self.process_group == "world" else self.process_group

    def _check_input(self, x: Tensor) -> None:
        owner = type(self).__name__
        if not isinstance(x, Tensor):
            raise TypeError(f"{owner}: input must be a torch.Tensor; got {type(x).__name__}")
        if x.dtype not in REAL:
            raise TypeError(
                f"{owner}: input must be of a floating-point type; got {x.dtype}. Convert it with .float()."
            )
        if x.ndim not in self._dimensions:
            expected = " or ".join(f"{n}D" for n in self._dimensions)
            raise ValueError(f"{owner}: expected {expected} input; got {x.ndim}D, of shape {tuple(x.shape)}")
        if x.shape[1] != self.num_features:
            raise ValueError(f"{owner}: expected {self.num_features} channels; got input of shape {tuple(x.shape)}")

    def _check_parameter(self, name: str, parameter: Tensor | None, x: Tensor) -> None:
        """Refuse what was put in the place of γ or β and cannot be it."""
        if parameter is None:
            return
        if parameter.shape != (self.num_features,):
            raise ValueError(
                f"{type(self).__name__}: {name} must have shape ({self.num_features},); got {tuple(parameter.shape)}"
            )
        if parameter.dtype not in REAL or parameter.layout is not torch.strided:
            raise TypeError(
                f"{type(self).__name__}: {name} must be dense and of a floating-point type; got {parameter.dtype}, "
                f"{parameter.layout}"
            )
        if parameter.device != x.device:
            raise RuntimeError(
                f"{type(self).__name__}: {name} must be on {x.device}, as the input is; got {parameter.device}"
            )

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}, group_size={self.group_size}"
            + (f", average={self.average}" if self.average != "covariance" else "")
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Load a state of ``nn.BatchNorm`` as well: its running variance is the diagonal of the covariance."""
        names = ("running_var", "running_covariance", "num_batches_tracked")
        var, covariance, batches = (prefix + name for name in names)
        own = self.running_covariance
        if var in state_dict and covariance not in state_dict and own is not None:
            if state_dict[var].numel() == self.num_features:
                variance = state_dict.pop(var).view(self.num_groups, self.group_size)
                state_dict[covariance] = torch.diag_embed(variance).to(own.dtype)
            if self.running_whitening is not None and covariance in state_dict:
                with torch.no_grad():
                    S = self.whitening_matrices(state_dict[covariance])
                state_dict.setdefault(prefix + "running_whitening", S)
            if self.num_batches_tracked is not None:  # which batch norms of old did not have
                state_dict.setdefault(batches, self.num_batches_tracked.clone())
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._cached = None


class _Derived(NamedTuple):
    """Whitening matrices, and what they were derived from: how, from which tensor, and what was in it."""

    matrices: Tensor
    recipe: tuple[Any, ...]
    source: Tensor
    version: int
    seen: Tensor

    def is_unchanged(self, recipe: tuple[Any, ...]) -> bool:
        """Whether nobody has written to the source since. (While exporting, the module's own buffer is not real.)"""
        with without_dispatch_modes():
            return recipe == self.recipe and self.version == version(self.source) and self._is_seen(self.source)

    def _is_seen(self, covariance: Tensor) -> bool:
        """By value, which sees every kind of change; on another device that would wait for it.

        There the count of writes has to do, and what was made in inference mode has none.
        """
        if covariance.device.type != "cpu":
            return not covariance.is_inference()
        return covariance.dtype == self.seen.dtype and torch.equal(self.seen, covariance.detach())

    def is_of(self, covariance: Tensor, recipe: tuple[Any, ...]) -> bool:
        """Whether they are those of this covariance."""
        if covariance.device.type != "cpu":
            return covariance is self.source and self.is_unchanged(recipe)
        return recipe == self.recipe and self._is_seen(covariance)


def _grouping(owner: str, features: int, size: int | None, groups: int | None) -> tuple[int, int]:
    """(group_size, num_groups) from at most one of the two."""
    if size is not None and groups is not None:
        raise ValueError(f"{owner}: give group_size or num_groups, not both; got {size} and {groups}")
    if size is not None:
        require_integer(owner, "group_size", size, minimum=1)
        name, part = "group_size", size
    else:
        groups = 1 if groups is None else groups
        require_integer(owner, "num_groups", groups, minimum=1)
        name, part = "num_groups", groups
    if features % part:
        divisors = [n for n in range(1, features + 1) if features % n == 0]
        raise ValueError(f"{owner}: {name}={part} does not divide num_features={features}; what does: {divisors}")
    return (part, features // part) if name == "group_size" else (features // part, part)
