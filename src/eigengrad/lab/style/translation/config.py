"""The configuration of an image translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ....arguments import require_non_negative, require_positive
from ....errors import unknown_choice
from ...training import Settings
from .wct import VARIANTS

__all__ = ["TranslationConfig"]

#: The map of a judge at its coarsest must still have a pixel to mirror.
_LEAST_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(Settings):
    """Everything a translation is told; the defaults are the paper's network and the schedule of GD-WCT for Artworks.

    Args:
        domain_a, domain_b: names of the two domains. Their pictures are in ``folder_a`` and ``folder_b``; else in
            ``data_root/train/<name>`` (with those to test in ``data_root/test/<name>``); else they are drawn, if the
            name is one of :data:`~eigengrad.lab.style.translation.domains.DRAWN`.
        folder_a, folder_b: see above.
        wct: "gd", "clip", "pi", "svd" or "exact"; see :func:`~eigengrad.lab.style.translation.wct.transfer`.
        width: channels of the first convolution; the features have four times as many.
        group_size: channels that are whitened and coloured together.
        blocks: residual blocks of the content encoder, and of the generator, which has a step of whitening and
            colouring more.
        style_reductions: see :class:`~eigengrad.lab.style.translation.style_encoder.StyleEncoder`.
        critic_width, critic_scales: of the discriminators.
        image_size: side of the pictures in pixels; a multiple of 4.
        degree, eps: K and ε of the decomposition.
        batch_covariance: take covariances of content and style over the batch instead of each picture by itself.
        style_loss: what styles are compared by in training: "moments", mean and covariance, one measure for every
            variant; or "seen", what the variant can see: for "gd" the mean alone, as published.
        iterations, batch_size: steps, and pictures of each domain a step (of all processes together).
        evaluate_every: steps between two evaluations; divides the other numbers of steps (``decay_from`` and
            ``decay_every`` if the learning rate falls before the last of the ``iterations``).
        lr, weight_decay: of Adam, whose betas are 0.5 and 0.999.
        decay_from, decay_every: after ``decay_from`` steps, the learning rate is halved every ``decay_every``.
        reconstruction_weight, cycle_weight, content_weight, style_weight: of the losses.
        whitening_weight, coloring_weight: of the penalties of "gd".
        seed, precision, threads, data_root: see :class:`~eigengrad.lab.training.Settings`.

    >>> TranslationConfig(wct="svd", width=16, iterations=1000, decay_from=500, decay_every=100, evaluate_every=100).wct
    'svd'
    """

    domain_a: str = "photo"
    domain_b: str = "vangogh"
    folder_a: str | None = None
    folder_b: str | None = None
    wct: str = "svd"
    width: int = 64
    group_size: int = 32
    blocks: int = 4
    style_reductions: int = 2
    critic_width: int = 64
    critic_scales: int = 3
    image_size: int = 216
    degree: int = 9
    eps: float = 0.01
    batch_covariance: bool = False
    style_loss: str = "moments"
    iterations: int = 200_000
    batch_size: int = 4
    evaluate_every: int = 1000
    lr: float = 1e-4
    weight_decay: float = 1e-4
    decay_from: int = 100_000
    decay_every: int = 10_000
    reconstruction_weight: float = 10.0
    cycle_weight: float = 10.0
    content_weight: float = 1.0
    style_weight: float = 1.0
    whitening_weight: float = 1e-3
    coloring_weight: float = 10.0

    _incidental: ClassVar[frozenset[str]] = Settings._incidental | {"folder_a", "folder_b"}

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.wct not in VARIANTS:
            raise unknown_choice("wct", self.wct, VARIANTS)
        if self.style_loss not in ("moments", "seen"):
            raise unknown_choice("style_loss", self.style_loss, ("moments", "seen"))
        if not isinstance(self.batch_covariance, bool):
            raise TypeError(f"{name}: batch_covariance must be a bool; got {self.batch_covariance!r}")
        for field in _COUNTS:
            self._integer(field, minimum=1)
        for field in ("domain_a", "domain_b"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value or value in (".", "..") or set(value) & set("/\\"):
                raise ValueError(f"{name}: {field} must be a name, as of a folder, without its path; got {value!r}")
        for field in ("folder_a", "folder_b"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, str(getattr(self, field)))
        for field in ("blocks", "style_reductions", "degree", "decay_from"):
            self._integer(field, minimum=0)
        for field in ("critic_scales", "style_reductions"):  # each halves the picture
            if getattr(self, field) > _MOST_HALVINGS:
                raise ValueError(f"{name}: {field} must be at most {_MOST_HALVINGS}; got {getattr(self, field)}")
        self._integer("image_size", minimum=_LEAST_SIZE)
        for field in ("lr", "eps"):
            require_positive(name, field, getattr(self, field))
        for field in ("weight_decay", *(f"{part}_weight" for part in _PARTS)):
            require_non_negative(name, field, getattr(self, field))
        if 4 * self.width % self.group_size:
            raise ValueError(
                f"{name}: group_size must divide the {4 * self.width} channels of the features (4 × width); "
                f"got {self.group_size}"
            )
        if self.image_size % 4:
            raise ValueError(f"{name}: image_size must be a multiple of 4; got {self.image_size}")
        least = 2 ** (self.critic_scales + 3)
        if self.image_size < least:
            raise ValueError(
                f"{name}: image_size must be at least {least} for {self.critic_scales} scales of discriminators; "
                f"got {self.image_size}"
            )
        if self.image_size < 8 << self.style_reductions:
            raise ValueError(
                f"{name}: style_reductions must leave 8 positions of an image_size of {self.image_size}; "
                f"got {self.style_reductions}"
            )
        counted = ("iterations", "decay_from", "decay_every") if self.decay_from < self.iterations else ("iterations",)
        for field in counted:
            if getattr(self, field) % self.evaluate_every:
                raise ValueError(
                    f"{name}: evaluate_every must divide {', '.join(counted)}; "
                    f"got {self.evaluate_every}, and {field} is {getattr(self, field)}"
                )

    def hash_fields(self) -> dict[str, Any]:
        """The fields that the result depends on, without the options that the chosen transfer does not have."""
        # Those with a decomposition see mean and covariance, so that both style losses are one.
        spectral = {"whitening_weight", "coloring_weight", "style_loss"}
        idle = spectral if self.wct != "gd" else {"degree", "eps", "batch_covariance"}
        if not self.batch_covariance:  # which runs of before it existed do not name
            idle.add("batch_covariance")
        if self.wct not in ("svd", "pi"):
            idle.add("degree")
        found = {name: value for name, value in super().hash_fields().items() if name not in idle}
        # Runs of before Algorithm 1's conditions were obeyed have other names.
        return {**found, "stops_at_eps": True} if self.wct == "pi" else found

    def label(self) -> str:
        """Domains, variant and seed."""
        return "-".join((self.domain_a, self.domain_b, self.wct, super().label()))


#: A picture of 2²⁴ pixels a side is larger than any.
_MOST_HALVINGS = 24

_COUNTS = (
    "width",
    "group_size",
    "critic_width",
    "critic_scales",
    "iterations",
    "batch_size",
    "evaluate_every",
    "decay_every",
)
_PARTS = ("reconstruction", "cycle", "content", "style", "whitening", "coloring")
