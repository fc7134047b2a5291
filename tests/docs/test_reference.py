"""The reference of the documentation: every public name has its page, and a page has what a reader looks for."""

import inspect
import re

import pytest

import docstrings
import eigengrad as eg
import formulas
import public_names
import reference

PAGES = {name: family for family in public_names.families() for name in family.names}
OURS = [n for n in PAGES if (getattr(public_names.lookup(n), "__module__", "") or "").startswith("eigengrad")]
ERRORS = {n for n in PAGES if inspect.isclass(t := public_names.lookup(n)) and issubclass(t, Exception)}


def test_every_public_name_has_its_page_in_a_family_of_its_kind():
    assert set(public_names.public_names()) <= set(PAGES)
    assert public_names.families()[-1].title != "More", public_names.families()[-1].names
    assert {"eigh", "nn.WhitenColor2d", "nn.functional.covariance", "linalg.cond"} <= set(PAGES)


def test_a_name_that_no_family_has_still_gets_a_page(monkeypatch):
    monkeypatch.setattr(eg, "__all__", [*eg.__all__, "show_nothing"])
    assert public_names.families()[-1].names == ("show_nothing",)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_role_no_private_name_and_only_links_that_lead_somewhere(name):
    page = reference.page(name, PAGES[name])
    assert not re.search(r":(func|class|meth|mod|attr|data|exc):", page)
    assert "::" not in page
    assert not re.search(r"eigengrad\.(gradients|matrix_functions|_\w+)\.", page)
    for target in re.findall(r"\]\(([^)#]+?\.md)", page):
        assert target.startswith("../") or target.removesuffix(".md") in PAGES, target


@pytest.mark.parametrize("name", OURS)
def test_a_page_has_signature_and_description(name):
    page = reference.page(name, PAGES[name])
    assert "{ .signature }" in page
    assert f"eigengrad.{name}(" in page.replace("class ", "")


@pytest.mark.parametrize("name", [n for n in OURS if not n.startswith(("testing", "kernels", "linalg"))])
def test_what_computes_has_a_formula(name):
    words = {
        "diagnose",
        "Diagnosis",
        "GradientRule",
        "register_rule",
        "GradientMonitor",
        "SpectrumReport",
        "show_config",
        "patch_torch",
        "spectrum_report",
    }
    assert name in formulas.FORMULAS or name in ERRORS | words


@pytest.mark.parametrize("name", OURS)
def test_a_page_has_an_example(name):
    assert "```python\n" in reference.page(name, PAGES[name]) or name in {
        "GradientRule",
        "ConvergenceError",
        "Diagnosis",
    }


def test_no_formula_belongs_to_a_name_that_is_gone():
    assert set(formulas.FORMULAS) <= set(PAGES)


def test_roles_become_links_and_unknown_ones_code():
    text = "See :func:`eigengrad.eigh`, :class:`Mask`, :meth:`_hidden` and :func:`torch.linalg.svd`."
    assert docstrings.roles_as_links(text, reference.address_of) == (
        "See [`eigh`](eigh.md), [`Mask`](Mask.md), `_hidden` and "
        "[`torch.linalg.svd`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.svd.html)."
    )


def test_doctests_become_code_that_can_be_copied():
    text = ">>> x = 1                  # one\n>>> for y in (x,):\n...     print(y)\n1\n>>> x\n1"
    lines = [line for line in docstrings.doctests_as_blocks(text).splitlines() if line]
    printed = ["```text { .output }", "1", "```"]
    assert lines[:5] == ["```python", "x = 1  # one", "for y in (x,):", "    print(y)", "```"]
    assert lines[5:] == [*printed, "```python", "x", "```", *printed]


def test_the_sections_of_a_docstring_are_found():
    text = (
        "Do.\n\n    f = 1\n\nArgs:\n    A, B: |x|,\n        both.\n    k: k.\n\nReturns:\n    (U, S): two.\n\n>>> 1\n1"
    )
    page = docstrings.to_markdown(text, lambda _: None, r"f \\ g")
    assert "$$\nf\n$$\n\n$$\ng\n$$" in page
    assert "f = 1" not in page
    assert "`A`, `B`\n:   |x|," in page
    assert "(U, S): two." in page
    assert page.index("**Arguments**") < page.index("**Result**") < page.index("**Example**")
