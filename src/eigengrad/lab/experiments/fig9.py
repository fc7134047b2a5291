"""Figure 9: pictures of SVD-WCT beside those of GD-WCT."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..report import Outcome
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .contact_sheet import contact_sheet
from .translated import Gallery, Setting, TranslationExperiment

__all__ = ["Fig9"]

_COLUMNS = 8


class Fig9(TranslationExperiment):
    """Photographs, paintings, and what the two methods make of them."""

    name = "fig9"
    title = "Figure 9: translated pictures of SVD-WCT and GD-WCT"
    paper = "Artworks, 4 styles, 216 px, 200,000 steps; pictures without numbers."
    compared: tuple[str, ...] = ("GD-WCT", "SVD-WCT")

    def evaluate(self, setting: Setting, galleries: Mapping[str, Gallery]) -> Outcome:
        """Write one sheet for each style. The pictures are the first of the test pictures, not chosen."""
        folder = setting.context.directory(self.name, setting.scale)
        conditions = setting.full_conditions
        drawn = []
        for style, gallery in galleries.items():
            rows: dict[str, Tensor | None] = {
                "photograph": gallery.photos[:_COLUMNS],
                f"style ({style})": gallery.paintings[:_COLUMNS],
            }
            for label in self.compared:
                made = gallery.painted[label].made
                rows[label] = made[0][:_COLUMNS] if made else None
            name = contact_sheet(rows, folder, f"{self.name}_{style}")
            caption = f"The first test photographs, in the style of test paintings. {conditions_text(conditions)}."
            drawn.append(Figure(name, caption))
        return Outcome(
            self.name,
            self.title,
            setting.scale,
            setting.conditions,
            self.paper,
            (),
            tuple(drawn),
            (),
            (
                "Pictures of the first seed, in the order of the test set: none was selected.",
                "Far fewer steps, smaller pictures and a slimmer network than the paper's.",
            ),
        )
