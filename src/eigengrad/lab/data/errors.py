"""Errors of data files: each names the file, says what is wrong with it and how to get one that is right."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CorruptDataError", "DataError", "MissingDataError"]


class DataError(OSError):
    """Something is wrong with a file of a data set."""

    def __init__(self, file: Path | str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{file}: {problem}{'. ' + remedy if remedy else ''}")
        self.file, self.problem, self.remedy = str(file), problem, remedy

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str, str]]:
        # As an error of another process it is made anew from these.
        return type(self), (self.file, self.problem, self.remedy)


class MissingDataError(DataError, FileNotFoundError):
    """A file or a folder is not there."""


class CorruptDataError(DataError):
    """A file is there, and does not hold what it should."""
