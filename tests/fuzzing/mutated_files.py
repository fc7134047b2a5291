"""Files of unknown origin: mutated files through the readers of the lab, which read them or refuse them by name.

``python tests/fuzzing/mutated_files.py <reader> <seed> <files> <seconds>`` runs one reader, or several with commas
between them, in a process that has 2 GB more than it starts with and 10 s for each file. It prints a line of JSON for
each. ``make fuzz-files`` runs all of them on 117,000 files.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import io
import json
import math
import os
import pickle
import random
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageCms

from eigengrad.lab.data import CorruptDataError, DataError, MissingDataError, cifar, load
from eigengrad.lab.data.files import FolderFiles, ZipFiles
from eigengrad.lab.data.pictures import Pictures
from eigengrad.lab.experiments.records import record
from eigengrad.lab.matrices import MatrixFileError, read_matrices
from eigengrad.lab.report import Outcome, build_page
from eigengrad.lab.style import weights as style_weights
from eigengrad.lab.style.images import PictureError, read_picture
from eigengrad.lab.style.translation import TranslationConfig
from eigengrad.lab.style.translation.apply import load_painter
from eigengrad.lab.style.translation.translator import Translator
from eigengrad.lab.style.weights import SHIPPED, WeightsError, load_codec
from eigengrad.lab.sweeps.progress_table import ProgressTable
from eigengrad.lab.sweeps.run import Run
from eigengrad.lab.training import Config, Failure, Result
from eigengrad.lab.training.checkpoint import CheckpointError, Checkpoints

sys.path.append(str(Path(__file__).parents[1] / "helpers"))  # pytest has it; a process of its own has not

from limits import limited_memory, peak_memory, time_limit
from sample_files import DATA, FILES, META, ONE_ROW, Elements, batch, png, saved

#: All opcodes of pickle that a reader could fall for, to be put anywhere.
OPCODES = (
    b"(.012FIJKLMNPQRSTUVXabcdeghijloprstu}])\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x90\x93\x94\x95\x96BC"
)
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 6_000_000_000)
JUNK: list[Any] = [
    *(None, True, -1, 10**400, 1e308, float("nan"), float("inf"), 2**62, 10**9),
    *("", "<script>", "\ud800", "../x", "{level.__class__}", "{level:>999999999}", "a" * 9999),
    *([], {}, [[]], {"": []}, [10**9]),
]


class Mutation:
    """Changes to the files of one seed; one that is not active leaves them as they are.

    Attributes:
        draw: the random numbers of this file.
    """

    def __init__(self, draw: random.Random, *, active: bool = True) -> None:
        self.draw, self.active = draw, active

    def chance(self, share: float) -> bool:
        return self.active and self.draw.random() < share

    def bytes(self, content: bytes) -> bytes:
        """With a few bytes changed, removed, repeated or inserted."""
        if not self.active:
            return content
        draw, changed = self.draw, bytearray(content)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
            # The ends of a file are where its structure is.
            size = max(len(changed), 1)
            near = min(size, draw.choice((64, 300, size)))
            place = draw.choice((draw.randrange(near), size - 1 - draw.randrange(near)))
            length = draw.choice((1, 1, 2, 4, 8, 30))
            kind = draw.randrange(7)
            if kind == 0 and place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            elif kind == 1:
                changed[place : place + length] = draw.randbytes(length)
            elif kind == 2:
                del changed[place : place + length]
            elif kind == 3:
                changed[place:place] = changed[place : place + length] * draw.choice((1, 2, 50))
            elif kind == 4:
                changed[place : place + 8] = struct.pack("<Q", draw.choice(NUMBERS))[: draw.choice((1, 2, 4, 8))]
            elif kind == 5:
                other = draw.randrange(size)
                changed[place : place + length] = changed[other : other + length]
            else:
                del changed[place:]
        return bytes(changed)

    def pickle(self, content: bytes) -> bytes:
        """The same, or with opcodes put in."""
        if self.chance(0.5):
            place = self.draw.randrange(len(content) + 1)
            opcodes = bytes(self.draw.choices(OPCODES, k=self.draw.choice((1, 2, 5))))
            content = content[:place] + opcodes + content[place:]
        return self.bytes(content) if self.chance(0.7) else content

    def json(self, data: Any) -> bytes:
        """As text, with some values changed, and then some bytes."""
        data = json.loads(json.dumps(data))
        for _ in range(self.draw.choice((0, 1, 2)) * self.active):
            inner = data
            while isinstance(inner, (dict, list)) and inner:
                key = self.draw.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
                if self.draw.random() < 0.4 or not isinstance(inner[key], (dict, list)):
                    inner[key] = copy.deepcopy(self.draw.choice(JUNK))
                    break
                inner = inner[key]
        content = json.dumps(data).encode()
        return self.bytes(content) if self.chance(0.5) else content


def fuzz_pickle(change: Mutation, folder: Path) -> None:
    protocol = change.draw.choice((1, 2, 3, 4, 5))
    content = pickle.dumps(batch(change.draw.choice((1, 2))), protocol=protocol)
    if protocol < 4 and change.draw.random() < 0.5:  # the names of old versions of numpy; later ones have their lengths
        content = content.replace(b"numpy._core", b"numpy.core")
    loaded = cifar._unpickle(change.pickle(content), Path("batch"), "")
    cifar._rows(loaded, "labels", 10, Path("batch"), "")


def fuzz_archive(change: Mutation, folder: Path) -> None:
    """The tar inside the gzip is changed, or one of the pickles inside the tar, or the gzip."""
    draw, buffer = change.draw, io.BytesIO()
    where = draw.choice(("pickle", "tar", "tar", "gzip"))
    victim = draw.choice((*FILES, "batches.meta"))
    with tarfile.open(fileobj=buffer, mode="w", format=draw.choice((0, 1, 2))) as tar:
        for name in (*FILES, "batches.meta"):
            content = META if name == "batches.meta" else ONE_ROW
            content = change.pickle(content) if where == "pickle" and name == victim else content
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    whole = buffer.getvalue()
    packed = gzip.compress(change.bytes(whole) if where == "tar" else whole, 1)
    archive = folder / "cifar-10-python.tar.gz"
    archive.write_bytes(change.bytes(packed) if where == "gzip" else packed)
    assert len(load("cifar10", folder).train) >= 1


def fuzz_zip(change: Mutation, folder: Path) -> None:
    draw, buffer = change.draw, io.BytesIO()
    methods = (0, 8, 12, 14) if change.chance(0.3) else (0, 8)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("train/ant/0.png", "val/ant/0.png", "train/ä/1.png", "val/ä/2.png"):
            archive.writestr(name, png(), compress_type=draw.choice(methods))
    path = folder / "a.zip"
    path.write_bytes(change.bytes(buffer.getvalue()))
    files = ZipFiles(path)
    try:
        for name in files.files:
            with contextlib.suppress(DataError):
                files.read(name)
        assert len(load("folder", path).train) == 2 or change.active
    finally:
        files._zip.close()


def fuzz_tables(change: Mutation, folder: Path) -> None:
    """The tables of Tiny ImageNet: the classes of the test images, and the names of the classes."""
    tables = {
        "val/val_annotations.txt": b"a.png\tn1\t0\t0\t1\t1\nb.png\tn2\t0\t0\t1\t1\n",
        "words.txt": b"n1\tant\nn2\tbee\n",
    }
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("train/n1/images/0.png", "train/n2/images/0.png", "val/images/a.png", "val/images/b.png"):
            archive.writestr(f"tiny-imagenet-200/{name}", png())
        for name, content in tables.items():
            archive.writestr(f"tiny-imagenet-200/{name}", change.bytes(content))
    assert len(load("tiny_imagenet", path).test) >= 1


def fuzz_image(change: Mutation, folder: Path) -> None:
    buffer = io.BytesIO()
    kind = change.draw.choice(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"))
    Image.new("RGB", (9, 7), (1, 2, 3)).save(buffer, kind)
    (folder / "a.png").write_bytes(change.bytes(buffer.getvalue()))
    Pictures(FolderFiles(folder), ["a.png"]).read(0)


def fuzz_picture(change: Mutation, folder: Path) -> None:
    """What colour and style transfer read: more formats, 16 bits, transparency, orientation and colour profiles."""
    draw, buffer = change.draw, io.BytesIO()
    kind = draw.choice(("PNG", "PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000"))
    modes = {
        "PNG": ("RGB", "RGBA", "P", "L", "I;16"),
        "TIFF": ("RGB", "CMYK", "L", "I;16"),
        "JPEG": ("RGB", "CMYK", "L"),
    }
    mode = draw.choice(modes.get(kind, ("RGB",)))
    options: dict[str, Any] = {"icc_profile": PROFILE} if kind in ("PNG", "JPEG", "TIFF") and mode == "RGB" else {}
    if kind == "JPEG":
        exif = Image.Exif()
        exif[0x0112] = draw.randrange(1, 9)
        options["exif"] = exif
    Image.new(mode, (9, 7)).save(buffer, kind, **options)
    (folder / "a.png").write_bytes(change.bytes(buffer.getvalue()))
    read_picture(folder / "a.png")


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


def fuzz_outcome(change: Mutation, folder: Path) -> None:
    results = folder / "results" / "table4" / "small"
    results.mkdir(parents=True, exist_ok=True)
    (results / "outcome.json").write_bytes(change.json(DATA))
    page = build_page(folder / "results").read_text(encoding="utf-8")
    assert "script" not in Elements(page).tags
    Outcome.load(results)


def fuzz_result(change: Mutation, folder: Path) -> None:
    (folder / "result.json").write_bytes(change.json(change.draw.choice(RESULTS)))
    result = Result.load(folder)
    result.save(folder / "again.json")
    with ProgressTable(1, 0, visible=False) as table:
        table.ended(Run(result.config, folder), result)
    assert len(result.config.key()) > 0
    record(result)


RESULTS = [
    Result(
        *(Config(), "succeeded", None, {"test_error": [0.5, 0.25], "test_loss": [math.nan, 1.0]}, 0.25, 2, 0.25),
        gradient={"norm_mean": 1.0},
        changes=[{"step": 1, "what": "threads", "before": 1, "after": 2}],
    ).to_dict(),
    Result(Config(norm="iternorm"), "failed", Failure(1, 1, "divergence", None, "the loss has grown")).to_dict(),
]


def mutated_tensors(change: Mutation, content: bytes) -> bytes:
    """A file of torch.save, of which one part is changed and its checksum made right again; or any byte."""
    if not content.startswith(b"PK") or change.chance(0.3):
        return change.pickle(content)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(buffer, "w") as after:
        names = before.namelist()
        # Mostly the pickle, which says what the others are.
        victim = next(n for n in names if n.endswith("data.pkl")) if change.chance(0.8) else change.draw.choice(names)
        for name in names:
            part = before.read(name)
            after.writestr(name, change.pickle(part) if name == victim else part)
    return buffer.getvalue()


@functools.cache
def tensor_files() -> dict[str, bytes]:
    """Whole files of each kind, by what reads them."""
    state = {"a": torch.zeros(3), "b": torch.ones(2, 2, dtype=torch.float16), "c": torch.arange(4)[::2]}
    run = {
        **dict.fromkeys(("epoch", "batch", "step", "epoch_seconds", "seconds", "scaler"), 0),
        "format": 1,
        "settings": {"seed": 0},
        "curves": {"a": [1.0]},
        "best": (0.5, 1),
        "processes": [{}],
        "health": {},
        "modules": {"model": state},
        "optimizers": {},
        "schedulers": {},
    }
    config = TranslationConfig(width=2, group_size=2, blocks=1, critic_width=2, image_size=64)
    translator = {"settings": config.to_dict(), "modules": {"translator": Translator(config).state_dict()}}
    return {
        "weights": saved(state),
        "old weights": saved(state, legacy=True),
        "checkpoint": saved(run),
        "translator": saved(translator),
    }


def fuzz_weights(change: Mutation, folder: Path) -> None:
    kind = change.draw.choice(("weights", "old weights"))
    (folder / "a.pth").write_bytes(mutated_tensors(change, tensor_files()[kind]))
    tensors = style_weights._read(folder / "a.pth")
    assert all(tensor.numel() < 1000 for tensor in tensors.values())


def fuzz_checkpoint(change: Mutation, folder: Path) -> None:
    (folder / "step-0000000001.pt").write_bytes(mutated_tensors(change, tensor_files()["checkpoint"]))
    Checkpoints(folder).newest()


def fuzz_translator(change: Mutation, folder: Path) -> None:
    (folder / "last.pt").write_bytes(mutated_tensors(change, tensor_files()["translator"]))
    load_painter(folder)


def fuzz_codec(change: Mutation, folder: Path) -> None:
    """A description of weights, and the weights that it describes."""
    (folder / "codec.json").write_bytes(change.json(json.loads((SHIPPED / "codec.json").read_text())))
    if not (folder / "codec.pth").exists():
        shutil.copy(SHIPPED / "codec.pth", folder)
    load_codec(folder)


def fuzz_matrices(change: Mutation, folder: Path) -> None:
    """A matrix of torch.save or of numpy.save."""
    if change.chance(0.5):
        content = mutated_tensors(change, tensor_files()["weights"])
    else:
        buffer = io.BytesIO()
        np.save(buffer, np.eye(4, 5, dtype=np.float32))
        content = change.bytes(buffer.getvalue())
    (folder / "a.npy").write_bytes(content)
    assert read_matrices(folder / "a.npy").numel() < 1000


#: Each reader, and what it may raise.
READERS: dict[str, tuple[Callable[[Mutation, Path], None], tuple[type[Exception], ...]]] = {
    "pickle": (fuzz_pickle, (CorruptDataError,)),
    "archive": (fuzz_archive, (CorruptDataError, MissingDataError)),
    "zip": (fuzz_zip, (CorruptDataError, MissingDataError)),
    "tables": (fuzz_tables, (CorruptDataError, MissingDataError)),
    "image": (fuzz_image, (CorruptDataError,)),
    "picture": (fuzz_picture, (PictureError,)),
    "outcome": (fuzz_outcome, (ValueError,)),
    "result": (fuzz_result, (ValueError,)),
    "weights": (fuzz_weights, (WeightsError,)),
    "checkpoint": (fuzz_checkpoint, (CheckpointError,)),
    "translator": (fuzz_translator, (ValueError,)),
    "codec": (fuzz_codec, (WeightsError,)),
    "matrices": (fuzz_matrices, (MatrixFileError,)),
}


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one of those it was raised from, is that an allocation failed."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def fuzz(reader: str, seed: int | str, files: int, seconds: float) -> dict[str, Any]:
    """Read mutated files; how many, how many of them were refused, and the longest that one took, in seconds."""
    function, errors = READERS[reader]
    refused, count, longest, end = 0, 0, 0.0, time.monotonic() + seconds
    folder = Path(tempfile.mkdtemp())
    os.fsync = lambda handle: None  # the disk is not what is tested
    tensor_files()
    with limited_memory(2 << 30):
        while count < files and time.monotonic() < end:
            began = time.monotonic()
            try:
                with time_limit(10):
                    function(Mutation(random.Random(f"{seed}-{count}")), folder)
            except errors as error:
                refused += 1
                if ran_out_of_memory(error):
                    print(f"{reader}: the file of seed {seed}, number {count}", file=sys.stderr)
                    raise RuntimeError("it was refused only because there was no memory for it") from error
            except BaseException:
                print(f"{reader}: the file of seed {seed}, number {count}", file=sys.stderr)
                raise
            longest = max(longest, time.monotonic() - began)
            count += 1
    shutil.rmtree(folder)
    return {"files": count, "refused": refused, "peak": peak_memory(), "longest": round(longest, 2)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow's, of damaged images
    for name in sys.argv[1].split(","):
        print(json.dumps(fuzz(name, sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
