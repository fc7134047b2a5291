"""Decorrelated batch normalisation: batch norm with a whitening matrix where it has a standard deviation."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import require_integer
from ..gradients import GradientRule, resolve
from .whitening import default_gradient, whitening_matrix
from .whitening_norm import WhiteningNorm

__all__ = ["DecorrelatedBatchNorm1d", "DecorrelatedBatchNorm2d", "DecorrelatedBatchNorm3d"]


class _DecorrelatedBatchNorm(WhiteningNorm):
    """What the three have in common; documented at :class:`DecorrelatedBatchNorm2d`."""

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
        whitening: str = "zca",
        gradient: str | GradientRule | None = None,
        average: str = "covariance",
        process_group: Any = None,
    ) -> None:
        # Refuses a name that does not exist now rather than at the first batch. No matrix: nothing to compile for.
        whitening_matrix(torch.empty(0, 1, 1), whitening=whitening, gradient=gradient)
        self.whitening = whitening
        # A name with parameters becomes a rule: the compiler cannot parse.
        named = isinstance(gradient, str) and "(" in gradient and not gradient.startswith("pi(")
        self.gradient = resolve(gradient) if named and gradient is not None else gradient
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            bias=bias,
            group_size=group_size,
            num_groups=num_groups,
            average=average,
            process_group=process_group,
        )

    def whitening_matrices(self, covariance: Tensor) -> Tensor:
        return whitening_matrix(covariance, eps=self.eps, whitening=self.whitening, gradient=self.gradient)

    def _recipe(self) -> tuple[Any, ...]:
        return self.eps, self.whitening, self.gradient

    def _root_eps(self) -> float | None:
        own = type(self).whitening_matrices is _DecorrelatedBatchNorm.whitening_matrices
        return self.eps if own and self.whitening == "zca" and self.gradient in (None, "exact") else None

    def _iterated_eps(self) -> float | None:
        plain = isinstance(self.gradient, str) and self.gradient.partition("(")[0] == "pi"
        return self.eps if plain and self.whitening == "zca" else None

    def extra_repr(self) -> str:
        gradient = default_gradient(self.whitening) if self.gradient is None else self.gradient
        return f"{super().extra_repr()}, whitening={self.whitening}, gradient={gradient}"

    @classmethod
    def convert_batchnorm(
        cls,
        module: nn.Module,
        *,
        names: Collection[str] | None = None,
        first: int | None = None,
        eps: float | None = None,
        group_size: int | None = None,
        **options: Any,
    ) -> nn.Module:
        """Replace the batch norms of a model, as ``SyncBatchNorm.convert_sync_batchnorm`` does.

        Those are ``nn.BatchNorm1d/2d/3d`` themselves; subclasses, which may do something else, stay what they are.
        A converted layer has the batch norm's parameters and statistics. Its running covariance is diagonal, so in
        evaluation it starts as the same function (with the batch norm's ``eps``, which is kept unless one is given).

        Args:
            module: a model, or a batch norm. Children are replaced in place; the result is the module to use.
            names: convert only these, by their name in ``module.named_modules()``.
            first: convert only this many, in the order of ``module.named_modules()``.
            eps: ε of the new layers; ``None`` keeps the batch norm's. The paper uses 1e-2.
            group_size: d; where it does not divide a layer's channels, their greatest common divisor is used.
            options: further arguments of the new layers: whitening, gradient, average, process_group.

        >>> import torch
        >>> from eigengrad.nn import DecorrelatedBatchNorm2d
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        >>> DecorrelatedBatchNorm2d.convert_batchnorm(model, group_size=4)[1].group_size
        4
        """
        kinds = {nn.BatchNorm1d: DecorrelatedBatchNorm1d, nn.BatchNorm2d: DecorrelatedBatchNorm2d}
        kinds[nn.BatchNorm3d] = DecorrelatedBatchNorm3d
        if not isinstance(module, nn.Module):
            raise TypeError(f"convert_batchnorm: module must be an nn.Module; got {type(module).__name__}")
        found = {name: m for name, m in module.named_modules(remove_duplicate=False) if type(m) in kinds}
        if isinstance(names, str):
            raise TypeError(f"names: expected a collection of names; got the string {names!r}")
        if first is not None:
            require_integer("convert_batchnorm", "first", first, minimum=0)
        if group_size is not None:
            require_integer("convert_batchnorm", "group_size", group_size, minimum=1)
        unknown = set(names or ()) - set(found)
        if unknown:
            raise ValueError(f"names: no batch norm is called {sorted(unknown)}; there are: {sorted(found)}")
        converted: dict[nn.Module, nn.Module] = {}  # a batch norm that is used twice stays one layer
        places: dict[str, nn.Module] = {}
        for name, norm in found.items():
            if (names is not None and name not in names) or (norm not in converted and len(converted) == first):
                continue
            if norm not in converted:
                size = None if group_size is None else gcd(group_size, norm.num_features)
                converted[norm] = kinds[type(norm)]._like(norm, eps, size, options)
            places[name] = converted[norm]
        for name, layer in places.items():  # once all are made: what fails leaves the model as it was
            parent, _, child = name.rpartition(".")
            if name:
                module.get_submodule(parent).register_module(child, layer)
        return places.get("", module)

    @classmethod
    def _like(cls, norm: Any, eps: float | None, group_size: int | None, options: dict[str, Any]) -> nn.Module:
        """A layer with the statistics of a batch norm and its parameters: the same objects, so optimizers keep them."""
        example = next(iter([*norm.parameters(), *norm.buffers()]), torch.empty(0))
        layer = cls(
            norm.num_features,
            norm.eps if eps is None else eps,
            norm.momentum,
            norm.weight is not None,
            norm.running_mean is not None,
            example.device,
            example.dtype,
            bias=norm.bias is not None,
            group_size=group_size,
            **options,
        )
        state = norm.state_dict()
        if layer.running_mean is None:
            state.pop("num_batches_tracked", None)
        layer.load_state_dict(state)
        layer.weight, layer.bias = norm.weight, norm.bias
        layer.track_running_stats = norm.track_running_stats
        return layer.train(norm.training)


class DecorrelatedBatchNorm1d(_DecorrelatedBatchNorm):
    """Decorrelated batch norm of features (N, C) or sequences (N, C, L); else as :class:`DecorrelatedBatchNorm2d`.

    >>> import torch
    >>> from eigengrad.nn import DecorrelatedBatchNorm1d
    >>> DecorrelatedBatchNorm1d(8, group_size=4)(torch.randn(16, 8)).shape
    torch.Size([16, 8])
    """

    _dimensions = (2, 3)


class DecorrelatedBatchNorm2d(_DecorrelatedBatchNorm):
    """Batch normalisation of images (N, C, H, W) by whitening: the paper's Algorithm 2.

    Channels are taken in groups of d. With mean μ and covariance M (divided by the count) of a group over the batch and
    its positions, y = γ S (x − μ) + β with S (M + εI) Sᵀ = I. In evaluation, S is derived from the running
    *covariance*, which is what is averaged; ``average="whitening"`` averages S itself, the running subspace of the
    paper's Algorithm 1, which the paper holds to be less stable.

    Shapes and behaviour follow ``nn.BatchNorm``: argument order, ``momentum=None`` for a cumulative average,
    ``track_running_stats=False`` for batch statistics always. The gradient is exact by default, whatever the spectrum;
    kept for backward are the input and matrices of size d × d.

    Args:
        num_features: C, of an input (N, C, *spatial).
        eps: ε, added to the diagonal of the covariance; the spectrum is clamped there.
        momentum: share of the new batch in the running statistics; ``None`` averages all batches alike.
        affine, bias: learn γ and β; without ``bias`` γ alone.
        track_running_stats: keep running statistics for evaluation.
        group_size, num_groups: d, or C/d; at most one of the two. By default all channels are one group.
        whitening: "zca" (symmetric), "pca" (components in order of variance) or "cholesky" (lower triangular).
        gradient: how S is differentiated: see :func:`eigengrad.nn.functional.whitening_matrix`. ``None`` is "exact",
            and "saturate" for PCA.
        average: what evaluation uses: "covariance", S of the averaged covariance; or "whitening", the average of S over
            the batches (from I). The second keeps both averages (and derives S of a batch twice), so that setting the
            attribute ``average`` of a trained layer compares the two.
        process_group: share statistics between the processes of this group while training; "world" is all of them.
            ``None`` shares none, and warns once where there are others; "local" shares none and says nothing. See also
            :meth:`convert_sync_batchnorm`.

    >>> import torch
    >>> from eigengrad.nn import DecorrelatedBatchNorm2d
    >>> layer = DecorrelatedBatchNorm2d(8, group_size=4)
    >>> layer(torch.randn(16, 8, 5, 5)).shape
    torch.Size([16, 8, 5, 5])
    """

    _dimensions = (4,)


class DecorrelatedBatchNorm3d(_DecorrelatedBatchNorm):
    """Decorrelated batch norm of volumes (N, C, D, H, W); else as :class:`DecorrelatedBatchNorm2d`.

    >>> import torch
    >>> from eigengrad.nn import DecorrelatedBatchNorm3d
    >>> DecorrelatedBatchNorm3d(8, group_size=4)(torch.randn(4, 8, 3, 5, 5)).shape
    torch.Size([4, 8, 3, 5, 5])
    """

    _dimensions = (5,)
