"""Small whole files of the kinds that the lab reads, for tests that damage them."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from eigengrad.lab.report import Finding, Outcome, Table
from eigengrad.lab.report.outcome import Figure

ROWS = 3
FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def batch(rows: int = ROWS) -> dict[str, Any]:
    data = np.arange(rows * 3072, dtype=np.uint8).reshape(rows, 3072)
    return {"labels": [i % 10 for i in range(rows)], "data": data, "filenames": [f"{i}.png" for i in range(rows)]}


ONE_ROW = pickle.dumps(batch(1), protocol=2)
META = pickle.dumps({"label_names": [str(i) for i in range(10)]}, protocol=2)


def write_cifar(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for file in FILES:
        (folder / file).write_bytes(pickle.dumps(batch(), protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}, protocol=2))
    return folder


def long(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


def png(size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def write_zip(path: Path, method: int = zipfile.ZIP_DEFLATED, content: bytes | None = None) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for split in ("train", "val"):
            for name in ("ant", "bee"):
                archive.writestr(f"{split}/{name}/0.png", png() if content is None else content)
    return path


def outcome() -> Outcome:
    table = Table("numbers", "Numbers", ("method", "ours"), (("SVD", 1.5), ("PI", None)), {"epochs": "5"}, "A note.")
    return Outcome(
        *("table4", "Title", "small", {"data": "digits"}, "15 trials."),
        tables=(table,),
        figures=(Figure("curves", "Curves."),),
        findings=(Finding("A claim", "confirmed", "3 of 3."),),
        notes=("A note.",),
        about={"torch": "2"},
        day="2026-11-18",
    )


class Elements(HTMLParser):
    """The tags, attributes and addresses of a page, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}


DATA = outcome().to_dict()


def saved(content: Any, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()
