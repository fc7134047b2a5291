"""The kinds of training that a run can be, by the class of its settings.

To add one, give it a class of settings and a function like :func:`eigengrad.lab.training.train`, and name both here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..training import Result, Settings
from ..training.reporter import Reporter

__all__ = ["execute", "serialise"]

#: Name of the class of settings → the module that has it and its ``train``; imported when it is needed.
KINDS = {"Config": "eigengrad.lab.training", "TranslationConfig": "eigengrad.lab.style.translation"}


def serialise(settings: Settings) -> dict[str, Any]:
    """Settings as JSON that :func:`execute` understands, in another process or on another machine."""
    return {"kind": type(settings).__name__, "fields": settings.to_dict()}


def execute(description: Mapping[str, Any], directory: Path | str, progress: Reporter) -> Result:
    """Execute the run that :func:`serialise` described, and return its result."""
    module = import_module(KINDS[description["kind"]])
    settings = getattr(module, description["kind"]).from_dict(description["fields"])
    result: Result = module.train(settings, directory, progress=progress)
    return result
