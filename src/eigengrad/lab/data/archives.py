"""The public archives of the data sets: where they are, what their checksums are, and how to get them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import unknown_choice
from .download import download

__all__ = ["ARCHIVES", "Archive", "fetch"]


@dataclass(frozen=True)
class Archive:
    """A file that its authors publish."""

    url: str
    md5: str
    size: int

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.url.rpartition("/")[2]

    def remedy(self, name: str, root: Path | None) -> str:
        """What to tell somebody whose ``root`` (a folder, or the file) lacks it or has it damaged."""
        folder = "DIR" if root is None else str(root.parent if root.is_file() else root)
        return (
            f"Get {self.file} ({self.size / 1e6:.0f} MB) from {self.url}, "
            f'or run: python -c "from eigengrad.lab.data import fetch; fetch({name!r}, {folder!r})"'
        )


#: By the name of the data set.
ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437
    ),
    "tiny_imagenet": Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043
    ),
}


def fetch(name: str, root: Path | str, *, progress: bool = True) -> Path:
    """Download the archive of a data set into the folder ``root``, where :func:`eigengrad.lab.data.load` finds it.

    There is nothing to unpack. An interrupted download is continued, a complete one is not repeated.

    Args:
        name: "cifar10", "cifar100" or "tiny_imagenet".
        root: a folder, which is made if it does not exist.
        progress: show a bar.

    Returns:
        The file.
    """
    if name not in ARCHIVES:
        raise unknown_choice("name", name, ARCHIVES)
    archive = ARCHIVES[name]
    path = Path(root) / archive.file
    return download(archive.url, path, md5=archive.md5, limit=archive.size, progress=progress)
