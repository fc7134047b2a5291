"""A hook of mkdocs: the version, and the addresses that pyproject.toml states, on every page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def version(root: Path = ROOT) -> str:
    """The version that the package states, read without an import."""
    found = re.search(r'^__version__ = "(.+)"', (root / "src/eigengrad/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("src/eigengrad/__init__.py states no __version__")
    return found[1]


def addresses(root: Path = ROOT) -> dict[str, str]:
    """The project's URLs in pyproject.toml by their names in lower case; none are invented."""
    section = re.search(
        r"^\[project\.urls\]\n(.*?)(?=^\[|\Z)", (root / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    found = re.findall(r'^"?([^"=\n]+?)"?\s*=\s*"(.+?)"', section[1] if section else "", re.MULTILINE)
    return {name.lower(): address for name, address in found}


def on_config(config: Any, **_: Any) -> Any:
    """Name the version in the title; link the repository and give absolute addresses where there are any."""
    config.site_name = f"eigengrad {version()}"
    config.extra["project_version"] = version()
    urls = addresses()
    config.repo_url = config.repo_url or urls.get("repository") or urls.get("source")
    config.site_url = config.site_url or urls.get("documentation") or ""
    if config.repo_url and not config.repo_name:
        config.repo_name = config.repo_url.rstrip("/").split("/")[-1]
    return config
