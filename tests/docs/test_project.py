"""What the documentation says of the project itself: its version, and addresses that pyproject.toml states."""

from types import SimpleNamespace

import pytest

import eigengrad as eg
import project


def configuration():
    return SimpleNamespace(site_name="eigengrad", extra={}, repo_url=None, repo_name=None, site_url=None)


def test_the_version_is_that_of_the_package(tmp_path):
    assert project.version() == eg.__version__
    (tmp_path / "src/eigengrad").mkdir(parents=True)
    (tmp_path / "src/eigengrad/__init__.py").write_text("nothing = 0\n")
    with pytest.raises(ValueError, match="states no __version__"):
        project.version(tmp_path)


def test_addresses_are_those_of_the_project_and_none_is_invented(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert project.addresses(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[project]\n[project.urls]\nRepository = "https://example.org/a/b/"\n')
    assert project.addresses(tmp_path) == {"repository": "https://example.org/a/b/"}


def test_every_page_names_the_version_and_links_the_repository_if_there_is_one(monkeypatch):
    monkeypatch.setattr(project, "addresses", dict)
    plain = project.on_config(configuration())
    assert plain.site_name == f"eigengrad {eg.__version__}"
    assert (plain.repo_url, plain.site_url) == (None, "")
    urls = {"repository": "https://example.org/a/b/", "documentation": "https://example.org/docs/"}
    monkeypatch.setattr(project, "addresses", lambda: urls)
    linked = project.on_config(configuration())
    assert (linked.repo_url, linked.repo_name, linked.site_url) == (urls["repository"], "b", urls["documentation"])
