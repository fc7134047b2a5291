"""A hook of mkdocs: the Python of the tutorials is run, and what it prints and draws stands below it.

Results are kept by a digest of the code, of the package and of the version of torch, so that a build runs only what
has changed. A block that fails ends the build.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

__all__ = ["blocks_of", "execute", "with_results"]

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "out" / "docs-cache"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def blocks_of(markdown: str) -> list[str]:
    """The blocks of Python in a page, in order."""
    return _BLOCK.findall(markdown)


def digest(blocks: list[str]) -> str:
    """What the results depend on: the code, the package, the runner and torch."""
    total = hashlib.sha256(json.dumps([blocks, version("torch"), version("matplotlib")]).encode())
    for path in (Path(__file__).with_name("run_blocks.py"), *sorted((ROOT / "src/eigengrad").rglob("*.py"))):
        total.update(path.read_bytes())
    return total.hexdigest()[:24]


def execute(name: str, markdown: str, cache: Path = CACHE) -> tuple[Path, list[dict[str, Any]]]:
    """Run the blocks of a page in a process of their own, or take what an earlier build found.

    Args:
        name: of the page, for its figures and for errors.
        markdown: the page.
        cache: a folder for results.

    Returns:
        The folder of the figures, and for each block what it printed and drew.
    """
    blocks = blocks_of(markdown)
    folder = cache / f"{name}-{digest(blocks)}"
    kept = folder / "results.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        job = json.dumps({"blocks": blocks, "figures": str(folder), "name": name})
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("run_blocks.py"))],
            input=job,
            capture_output=True,
            text=True,
            cwd=folder,
            # Without kernels: they give the same numbers to round-off, and need not be compiled for a page.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "EIGENGRAD_KERNELS": "0"},
            check=False,
        )
        if done.returncode != 0:
            raise PluginError(f"docs/tutorials/{name}.md does not run:\n{done.stderr}")
        kept.write_text(done.stdout)
    return folder, json.loads(kept.read_text())


def with_results(markdown: str, results: list[dict[str, Any]], address: Callable[[str], str] = str) -> str:
    """The page with what each block printed and drew behind it."""
    remaining = iter(results)

    def extended(match: re.Match[str]) -> str:
        result, text = next(remaining), match[0]
        if result["printed"].strip():
            text += f"\n```text {{ .output }}\n{result['printed'].rstrip()}\n```\n"
        for figure in result["figures"]:
            text += f"\n![{figure['alt']}]({address(figure['file'])}){{ .figure }}\n"
        return text

    return _BLOCK.sub(extended, markdown)


_results: dict[str, list[dict[str, Any]]] = {}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Run every tutorial, and add its figures to the site."""
    for file in list(files.documentation_pages()):
        if not file.src_uri.startswith("tutorials/") or not blocks_of(file.content_string):
            continue
        folder, _results[file.src_uri] = execute(Path(file.src_uri).stem, file.content_string)
        for result in _results[file.src_uri]:
            for figure in result["figures"]:
                source = str(folder / figure["file"])
                files.append(File.generated(config, f"tutorials/{figure['file']}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show what was found."""
    results = _results.get(page.file.src_uri)
    return markdown if results is None else with_results(markdown, results)
