"""E8: how white the content is that a style is put on, after every step, beside style and sharpness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..report import Outcome, Table
from ..style.metrics import sharpness
from ..style.translation.apply import load_painter
from ..style.translation.wct import Transfer
from . import table8, table9
from .layout import protocol_note
from .translated import Gallery, Protocol, Setting, TranslationExperiment
from .trials import mean_text
from .verdicts import larger

__all__ = ["Whiteness"]

#: Relative distances from white that matter.
MARGIN = 0.05
#: Pictures that the distance is measured on, for each network.
_PICTURES = 32


class Whiteness(TranslationExperiment):
    """‖cov − I‖ of the content at every step of the networks of Tables 8 and 9, and what their pictures are like."""

    name = "whiteness"
    title = "Whiteness: how white the content is that a style is put on"
    paper = (
        "says that SVD-WCT computes a more accurate whitening matrix than GD-WCT, and its pictures are therefore "
        "sharper and carry more of the style (Tables 8 and 9), without measuring the whitening."
    )

    def protocol(self, scale: str) -> Protocol:
        """That of the tables, with a second style at the small scale."""
        chosen = super().protocol(scale)
        return replace(chosen, styles=("ukiyoe", "vangogh")) if scale == "small" else chosen

    def evaluate(self, setting: Setting, galleries: Mapping[str, Gallery]) -> Outcome:
        """Distances by method, style and step, and the three claims by style."""
        judge, _ = self.classifier(setting)
        rows, whiter, sharper, styled = [], [], [], []
        for style, gallery in galleries.items():
            distances = {label: _distances(setting.context.runs, gallery, label) for label in gallery.painted}
            scores = {k: [float(sharpness(made).mean()) for made in p.made] for k, p in gallery.painted.items()}
            shares = {k: [judge.share(made, style) for made in p.made] for k, p in gallery.painted.items()}
            for label, runs in distances.items():
                for step, values in enumerate(zip(*runs, strict=True), 1):
                    rows.append((style, label, step, mean_text(values, 3)))
            means = {label: [sum(run) / len(run) for run in runs] for label, runs in distances.items()}
            # Larger by less distance: the claim is that the first is nearer to white.
            claim = f"SVD-WCT whitens content more accurately than GD-WCT (style {style})"
            whiter.append((claim, means["GD-WCT"], means["SVD-WCT"]))
            claim = f"Pictures of SVD-WCT in the style {style} are sharper than those of GD-WCT, by pairs of runs"
            sharper.append((claim, scores["SVD-WCT"], scores["GD-WCT"]))
            claim = f"Pictures of SVD-WCT are taken for {style} more often than those of GD-WCT, by pairs of runs"
            styled.append((claim, shares["SVD-WCT"], shares["GD-WCT"]))
        trials = max(len(painted.made) for g in galleries.values() for painted in g.painted.values())
        table = Table(
            "whiteness",
            "Distance from white" if trials > 1 else "Distance from white: protocol check",
            ("style", "model", "step", "‖cov − I‖/√d"),
            tuple(rows),
            setting.full_conditions,
            "The covariance of what a step puts colours on, less I: Frobenius norm over √d, so that content without "
            "any variance has 1; mean over groups and test photographs. GD-WCT leaves whitening to its encoder. "
            f"{protocol_note(trials)}".strip(),
        )
        return Outcome(
            self.name,
            self.title,
            setting.scale,
            setting.conditions,
            self.paper,
            (table,),
            (),
            (
                *larger(whiter, margin=MARGIN, unit="of ‖cov − I‖/√d"),
                *larger(sharper, margin=table9.MARGIN, unit="grey levels a pixel"),
                *larger(styled, margin=table8.MARGIN, unit="points"),
            ),
            (
                f"Measured on {_PICTURES} test photographs a network, in the networks that paint the pictures.",
                "Decompositions whiten up to ε: where the variance of content is near ε = 0.01, it is shrunk instead.",
            ),
        )


def _distances(runs: Path, gallery: Gallery, label: str) -> list[list[float]]:
    """For each run of a method that succeeded, the distance of its content from white at every step."""
    painters = [load_painter(runs / r.config.key()) for r in gallery.painted[label].results if r.succeeded]
    found = []
    for painter in painters:
        steps: list[float] = []

        def watch(layer: Transfer, inputs: tuple[Tensor, Tensor], _: object, steps: list[float] = steps) -> None:
            excess = layer.whitened(inputs[0]) - torch.eye(layer.group_size)
            steps.append(float(excess.norm(dim=(-2, -1)).mean()) / layer.group_size**0.5)

        handles = [m.register_forward_hook(watch) for m in painter.translator.b.modules() if isinstance(m, Transfer)]
        with torch.no_grad():
            x, y = (2 * images[:_PICTURES] - 1 for images in (gallery.photos, gallery.paintings))
            painter.translator.translate(x, y, to="b")
        for handle in handles:
            handle.remove()
        found.append(steps)
    return found
