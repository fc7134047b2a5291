"""Table 6: SVD-PI, SVD-Taylor and batch norm on Tiny ImageNet, with two networks."""

from __future__ import annotations

from typing import ClassVar

from .layout import Printed
from .table5 import Table5, printed_row

__all__ = ["Table6"]


class Table6(Table5):
    """The comparison of Table 5 with larger images and 90 epochs."""

    name = "table6"
    title = "Table 6: errors on Tiny ImageNet"
    paper = "Tiny ImageNet, 100,000 training images of 64 px, ResNet-18 (5 trials) and ResNet-50 (1 trial), 90 epochs."
    protocol = "tiny_imagenet"
    printed: ClassVar = {
        **printed_row(
            "ResNet-18 SVD-PI",
            (36.24, 36.78, 36.88, 36.78, 36.48),
            ("36.62 ± 0.46", "38.43 ± 1.66", "37.27 ± 0.36", "38.43 ± 1.65", "36.83 ± 0.22"),
        ),
        **printed_row(
            "ResNet-18 SVD-Taylor",
            (36.30, 36.42, 35.68, 36.96, 36.16),
            ("36.58 ± 0.30", "36.70 ± 0.29", "36.64 ± 0.66", "37.32 ± 0.28", "36.72 ± 0.41"),
        ),
        ("ResNet-18 Batch norm", None): Printed(None, 36.92, "37.15 ± 0.21"),
        **printed_row("ResNet-50 SVD-PI", (35.74, 35.60, 35.36, 35.34, 35.10), ("",) * 5),
        **printed_row("ResNet-50 SVD-Taylor", (35.18, 35.40, 35.16, 35.02, 34.74), ("",) * 5),
        ("ResNet-50 Batch norm", None): Printed(None, 35.98),
    }
    notes = ("The paper ran ResNet-50 once for each setting; here every setting has the same number of trials.",)
