"""A picture through the network of the image translation, by the way it whitens and colours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from eigengrad.lab.experiments.table10 import contestants
from eigengrad.lab.style.translation import TranslationConfig
from harness import interleave, write

TEXT = """The paper's network (216 px, 256 channels in 8 groups of 32, 5 steps of whitening and colouring), batch 1,
float32, random weights. *network*: both encoders and the generator, without gradients: the paper's "reference time"
(GD-WCT 53, Clip-WCT 122, PI-WCT 184, SVD-WCT 122 ms on a Titan X). *steps*: its five steps alone. *steps and backward*:
those with their gradients. Contestants take turns; *of SVD-WCT* is the ratio of medians to that of SVD-WCT."""


def run(threads: list[int]) -> Path:
    rows: list[dict[str, Any]] = []
    for count in threads:
        torch.set_num_threads(count)
        for part, calls in contestants(TranslationConfig()).items():
            times = interleave(dict(calls), seconds=12.0 if part == "network" else 3.0)
            base = times["SVD-WCT"].median
            rows += [
                {"threads": count, "part": part, "method": name, "time": timing, "of SVD-WCT": timing.median / base}
                for name, timing in times.items()
            ]
    return write("translation", TEXT, ["threads", "part", "method", "time", "of SVD-WCT"], rows)
