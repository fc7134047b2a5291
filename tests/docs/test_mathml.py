"""Formulas of the documentation: TeX becomes MathML that is spaced as TeX spaces it."""

import html

import pytest

import formulas
import mathml


def shown(tex, block=False):
    return html.unescape(mathml.render(tex, block))


def test_a_named_operator_keeps_its_distance_from_letters_but_not_from_brackets():
    assert '<mo lspace="0.167em" rspace="0" movablelimits="true">diag</mo>' in shown(r"\operatorname{diag}(x)")
    assert '<mo lspace="0.167em" rspace="0.167em" movablelimits="true">log</mo>' in shown(r"\log A")


def test_slashes_have_no_space_and_greek_capitals_are_upright():
    text = shown(r"1/\Delta + \lambda")
    assert '<mo lspace="0" rspace="0">/</mo>' in text
    assert '<mi mathvariant="normal">Δ</mi>' in text
    assert "<mi>λ</mi>" in text


def test_a_displayed_formula_can_be_scrolled_on_a_phone():
    assert shown("a", block=True).startswith('<div class="formula"><math')
    assert 'display="inline"' in shown("a")


def test_what_is_marked_in_a_page_is_replaced_and_nothing_else():
    page = r'<p>5 $ <span class="arithmatex">\(a &lt; b\)</span> <code>\(x\)</code></p>'
    text = mathml.on_page_content(page)
    assert text.startswith("<p>5 $ <math")
    assert html.unescape(text).count("<mo><</mo>") == 1
    assert r"<code>\(x\)</code>" in text


@pytest.mark.parametrize("name", formulas.FORMULAS)
def test_every_formula_of_the_reference_is_understood(name):
    for line in formulas.FORMULAS[name].split(r"\\"):
        text = shown(line, block=True)
        assert "\\" not in text
        assert "merror" not in text
