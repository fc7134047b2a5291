"""Mutated files, some of each kind: the hundred thousand are in ``make fuzz-files``."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

import mutated_files
from mutated_files import READERS, Mutation

SLOW_FILES = 9_000  # of each reader: 117,000 together


def fuzz_in_a_process(readers: Iterable[str], seed: int, files: int, seconds: float) -> dict[str, dict[str, Any]]:
    """What each reader did with its mutated files, all in one process of their own."""
    arguments = [",".join(readers), str(seed), str(files), str(seconds)]
    command = [sys.executable, "-X", "faulthandler", mutated_files.__file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(readers, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return fuzz_in_a_process(READERS, seed=1, files=120, seconds=120)


@pytest.mark.parametrize("reader", READERS)
def test_the_files_that_are_mutated_are_accepted_as_they_were(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for number in range(20):
        READERS[reader][0](Mutation(random.Random(f"whole-{number}"), active=False), tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_mutated_files_are_read_or_refused(reader, found):
    result = found[reader]
    assert result["files"] == 120
    assert 0 < result["refused"] < result["files"], "mutations are too strong or too weak to test anything"
    assert result["peak"] < 2 << 30


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_hundred_thousand_mutated_files_are_read_or_refused(reader):
    result = fuzz_in_a_process([reader], seed=2, files=SLOW_FILES, seconds=1200)[reader]
    assert result["files"] == SLOW_FILES
    assert result["peak"] < 2 << 30
