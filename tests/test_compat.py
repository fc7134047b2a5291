"""Private names of torch are in one file."""

import ast
from pathlib import Path

import pytest
import torch

import eigengrad

SOURCE = Path(eigengrad.__file__).parent
FILES = sorted(p for p in SOURCE.rglob("*.py") if "lab" not in p.relative_to(SOURCE).parts and p.name != "_compat.py")
#: Private methods and attributes of tensors; subclasses and wrappers of torch's own have public ones.
OF_TENSORS = {name for name in dir(torch.Tensor) if name.startswith("_") and not name.startswith("__")}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` of an attribute of a name, or None."""
    if isinstance(node, ast.Name):
        return node.id
    owner = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if owner is None else f"{owner}.{node.attr}"


def private_names(source: str) -> list[str]:
    """The private names of torch that a file uses, with the numbers of their lines."""
    tree, found = ast.parse(source), []
    from_torch = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch" and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            from_torch |= {alias.asname or alias.name for alias in node.names}
            found += [f"{node.lineno}: {name}" for name in names if is_private(name)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "torch"]
            from_torch |= {alias.asname for alias in node.names if alias.asname and alias.name.startswith("torch")}
            found += [f"{node.lineno}: {name}" for name in names if is_private(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            of_torch = name is not None and name.split(".")[0] in from_torch and is_private(name)
            own = name is not None and name.startswith("self.")
            if of_torch or (node.attr in OF_TENSORS and not own) or node.attr.startswith("_dynamo"):
                found.append(f"{node.lineno}: {name or node.attr}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_private_names_of_torch_come_from_one_file(path):
    assert private_names(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._is_tracing()",
        "import torch._dynamo",
        "from torch._C import _functorch",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
        "x._is_zerotensor()",
        "f._dynamo_marked_constant = True",
    ],
)
def test_a_private_name_is_seen(source):
    assert private_names(source)


def test_the_file_itself_has_some():
    assert private_names((SOURCE / "_compat.py").read_text())
