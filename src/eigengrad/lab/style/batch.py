"""One picture or a folder of them: which files are read, which are written, and what becomes of the broken ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .images import PictureError, find_pictures, refuse_output

__all__ = ["Job", "distinct_names", "jobs", "paired_names", "run"]


@dataclass(frozen=True)
class Job:
    """A picture to read, and where to write what becomes of it."""

    content: Path
    output: Path


def jobs(content: Path, output: Path, inputs: Sequence[Path] = ()) -> list[Job]:
    """A picture to a file; or the pictures in a folder to files of the same name, as PNG, in another folder.

    Args:
        content: the picture or the folder.
        output: the file or the folder.
        inputs: other files that must not be overwritten.

    Raises:
        PictureError: if there is nothing to read, or an output would overwrite an input or has an unknown ending.
    """
    if not content.is_dir():
        refuse_output(output, [content, *inputs])
        return [Job(content, output)]
    found = find_pictures(content)
    if not found:
        raise PictureError(f"{content}: there are no pictures in this folder")
    if output.is_file():
        raise PictureError(f"{output}: {content} is a folder, so the output must be a folder too; this is a file")
    planned = [Job(path, output / f"{name}.png") for path, name in zip(found, distinct_names(found), strict=True)]
    for job in planned:
        refuse_output(job.output, [*found, *inputs])
    return planned


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """A name for each picture, by which the one that is made of it is called: no two alike.

    >>> distinct_names([Path("a/photo.jpg"), Path("a/photo.png"), Path("a/cat.jpg")])
    ['photo.jpg', 'photo.png', 'cat']
    >>> distinct_names([Path("a/photo.jpg"), Path("b/photo.jpg")])
    ['1-photo.jpg', '2-photo.jpg']
    """
    stems = [path.stem for path in paths]
    whole = [path.name for path in paths]
    shortest = [path.name if stems.count(path.stem) > 1 else path.stem for path in paths]
    for names in (shortest, whole):
        if len(set(names)) == len(names):
            return names
    return [f"{number}-{name}" for number, name in enumerate(whole, 1)]


def paired_names(contents: Sequence[str], styles: Sequence[str]) -> dict[tuple[str, str], str]:
    """A name for each content in each style, no two alike, where the names of contents and of styles are distinct.

    >>> paired_names(["a", "a-b"], ["c"])
    {('a', 'c'): 'a-c', ('a-b', 'c'): 'a-b-c'}
    >>> list(paired_names(["a", "a-b"], ["c", "b-c"]).values())
    ['a-1-c', 'a-2-b-c', 'a-b-1-c', 'a-b-2-b-c']
    """
    pairs = [(content, style) for content in contents for style in styles]
    names = [f"{content}-{style}" for content, style in pairs]
    if len(set(names)) < len(names):
        names = [f"{content}-{styles.index(style) + 1}-{style}" for content, style in pairs]
    return dict(zip(pairs, names, strict=True))


def run(work: Callable[[Job], None], planned: Sequence[Job], complain: Callable[[str], None]) -> int:
    """Run all jobs. One that fails is named and does not stop the others.

    Returns:
        How many failed.
    """
    failed = 0
    for job in planned:
        try:
            work(job)
        except (PictureError, ValueError) as error:
            named = str(job.content) in str(error)
            complain(str(error) if named else f"{job.content}: {error}")
            failed += 1
    return failed
