"""The boundary of the kernel package: what stays inside of it, what it may use, and how large it is."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

import eigengrad

ROOT = Path(eigengrad.__file__).parent
KERNELS = ROOT / "kernels"
OUTSIDE = sorted(path for path in ROOT.rglob("*.py") if KERNELS not in path.parents)
SHARED = KERNELS / "private_folder.py"  # by the caches of the CPU's kernels and of the GPU's choices
INSIDE = sorted(path for path in KERNELS.rglob("*.py") if KERNELS / "gpu" not in path.parents and path != SHARED)
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source):
    """How many lines have a token that is neither a comment nor part of a docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, node.end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def imported(path):
    """The modules that a file imports, by their names as they stand there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_lines_of_code_are_counted_without_comments_blanks_and_docstrings():
    source = (
        '"""About.\n\nMore.\n"""\n\n# why\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Do it."""\n    return "a"\n'
    )
    assert code_lines(source) == 5


def test_the_cpu_kernels_have_at_most_4500_lines_of_code():
    assert sum(code_lines(path.read_text()) for path in INSIDE) <= 4500


def test_nothing_outside_imports_past_the_door():
    for path in OUTSIDE:
        for name in imported(path):
            parts = name.lstrip(".").split(".")
            assert "kernels" not in parts or parts[-1] == "kernels" or parts[-1] == "gpu", f"{path}: {name}"


@pytest.mark.parametrize("private", ["numba.core", "numba.np", "torch._C", "torch._dynamo"])
def test_kernels_use_public_parts_of_numba_and_torch(private):
    for path in INSIDE:
        assert not any(name == private or name.startswith(private + ".") for name in imported(path)), path
