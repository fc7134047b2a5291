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
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.url.rpartition("/")[2]

    def remedy(self, name: str, root: Path | None) -> str:
        """The remedy for a ``root`` (a folder, or the file) that lacks the archive or has it damaged, as a sentence."""
        folder = Path("DIR") / name if root is None else root.parent if root.is_file() else root
        parent = folder.parent if folder.name == name else folder
        return (
            f"Get {self.file} ({self.size / 1e6:.0f} MB) from {self.url}, "
            f"and put it into {folder}; or run: eigengrad fetch {name} --data-root {parent}"
        )


#: By the name of the data set. The authors publish MD5 sums, which can be forged. These SHA-256 sums are those that
#: Keras has for CIFAR, and that independent copies of the archive of Tiny ImageNet, of the same size, agree on.
ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        170_498_071,
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        169_001_437,
    ),
    "tiny_imagenet": Archive(
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        248_100_043,
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
    return download(archive.url, path, sha256=archive.sha256, limit=archive.size, progress=progress)
