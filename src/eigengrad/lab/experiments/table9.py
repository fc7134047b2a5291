"""Table 9: how sharp translated pictures are."""

from __future__ import annotations

from collections.abc import Mapping

from ..report import Outcome, Table
from ..style.metrics import sharpness
from .layout import protocol_note
from .translated import Gallery, Setting, TranslationExperiment
from .trials import mean_text
from .verdicts import larger

__all__ = ["PRINTED", "Table9"]

PRINTED = {
    "GD-WCT": {"cezanne": 9.78, "monet": 9.28, "ukiyoe": 12.07, "vangogh": 11.85},
    "Clip-WCT": {"cezanne": 11.65, "monet": 12.55, "ukiyoe": 13.38, "vangogh": 14.48},
    "PI-WCT": {"cezanne": 11.98, "monet": 14.77, "ukiyoe": 14.68, "vangogh": 16.56},
    "SVD-WCT": {"cezanne": 11.91, "monet": 14.48, "ukiyoe": 15.12, "vangogh": 18.67},
}


#: Grey levels a pixel that matter: a tenth of what lies between the paper's methods.
MARGIN = 0.5


class Table9(TranslationExperiment):
    """The sharpness of pictures: the mean norm of the gradient of their intensity."""

    name = "table9"
    title = "Table 9: sharpness of translated pictures"
    paper = "Artworks, 4 styles, 216 px, 200,000 steps."

    def evaluate(self, setting: Setting, galleries: Mapping[str, Gallery]) -> Outcome:
        """Sharpness by method and style, beside that of the real pictures."""
        rows, claims = [], []
        for style, gallery in galleries.items():
            scores = {
                label: [float(sharpness(made).mean()) for made in painted.made]
                for label, painted in gallery.painted.items()
            }
            for label, values in scores.items():
                failures = gallery.painted[label].failures()
                rows.append((style, label, PRINTED.get(label, {}).get(style), mean_text(values), failures))
            for label, images in (("real photographs", gallery.photos), ("real paintings", gallery.paintings)):
                rows.append((style, label, None, f"{float(sharpness(images).mean()):.2f}", None))
            for first, second in (("SVD-WCT", "GD-WCT"), ("SVD-WCT", "Clip-WCT"), ("Exact (ours)", "GD-WCT")):
                claims.append(
                    (
                        f"{'(ours) ' if 'ours' in first else ''}Pictures of {first} in the style {style} are sharper "
                        f"than those of {second}",
                        scores[first],
                        scores[second],
                    )
                )
        trials = max(len(painted.made) for g in galleries.values() for painted in g.painted.values())
        table = Table(
            "table9",
            "Sharpness" if trials > 1 else "Sharpness: protocol check",
            ("style", "model", "paper", "ours", "how ours failed"),
            tuple(rows),
            setting.full_conditions,
            "Mean norm of the gradient of the intensity, in grey levels of 256 a pixel. It grows as pictures get "
            "smaller, so only the order can be compared with the paper's. Noise and checkerboards are sharp too: read "
            f"it with the figures. {protocol_note(trials)}".strip(),
        )
        return Outcome(
            self.name,
            self.title,
            setting.scale,
            setting.conditions,
            self.paper,
            (table,),
            (),
            tuple(larger(claims, margin=MARGIN, unit="grey levels a pixel")),
            ("Far fewer steps, smaller pictures and a slimmer network than the paper's.",),
        )
