"""Rules by name: with parameters, of one's own, and from installed packages."""

from dataclasses import dataclass

import pytest
import torch

import eigengrad as eg
from eigengrad import gradients
from eigengrad.gradients import parse_rule, resolve


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(gradients, "RULES", dict(gradients.RULES))


@dataclass(frozen=True)
class Constant(eg.PairRule):
    """|R| = value for every pair."""

    value: float = 1.0

    def reciprocal(self, eigenvalues):
        n = eigenvalues.shape[-1]
        return torch.full((*eigenvalues.shape, n), self.value, dtype=eigenvalues.dtype)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("clip(threshold=50)", eg.Clip(50)),
        (" clip ( threshold = 5e1 ) ", eg.Clip(50.0)),
        ("clip()", eg.Clip()),
        ("taylor(degree=19, eps=1e-4)", eg.Taylor(19, 1e-4)),
        ("taylor(eps=none)", eg.Taylor()),
        ("truncate(rank=2)", eg.Truncate(rank=2)),
        (
            "power_iteration(steps=10, eps=0.01, stop=False, inclusive=true)",
            eg.PowerIteration(10, 0.01, inclusive=True, stop=False),
        ),
        ("unit_norm_or_nan", eg.UnitNormOrNaN()),
    ],
)
def test_a_name_may_have_parameters(text, rule):
    assert resolve(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clip(limit=5)", "got 'clip\\(limit=5\\)'; the parameters of clip are: threshold"),
        ("exact(x=1)", "the parameters of exact are: none"),
        ("clip(50)", "got '50' in 'clip\\(50\\)'; expected parameter=value"),
        ("clip(threshold=1, threshold=2)", "each parameter once"),
        ("clip(threshold=__import__)", "got the value '__import__'.*expected a number, true, false or none"),
        ("clip(threshold=-1)", "Clip: threshold must be positive; got -1"),
        ("clip)", "expected a name, or name"),
        ("module:Rule", "got 'module:Rule'; expected one of 'clip'"),
        ("nothing(x=1)", "got 'nothing'; expected one of"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        resolve(text)


@pytest.mark.parametrize("name", ["pade", "svd_pade", "SVD-Padé"])
def test_pade_is_explained_where_it_is_asked_for(name):
    with pytest.raises(ValueError, match=r"Padé approximant of 1/\(1 − q\) is 1/\(1 − q\) itself.*'exact'.*pade_sqrt"):
        resolve(name)


def test_diagonal_pade_of_the_geometric_series_is_itself():
    """What the message says, for [1/1]: 1 + q + q² + … = 1/(1 − q)."""
    interpolate = pytest.importorskip("scipy.interpolate")
    numerator, denominator = interpolate.pade([1.0, 1.0, 1.0], 1)
    for q in (0.1, 0.5, 0.999):
        assert numerator(q) / denominator(q) == pytest.approx(1 / (1 - q), rel=1e-9)


def test_a_rule_of_ones_own_has_a_name_in_every_place(own):
    eg.register_rule("constant", Constant())
    A = torch.diag(torch.tensor([1.0, 2.0])).requires_grad_()
    weights = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    (eg.eigh(A, gradient="constant(value=7)").eigenvectors * weights).sum().backward()
    assert A.grad[0, 1].abs() == pytest.approx(7 * 0.5)
    assert eg.nn.DecorrelatedBatchNorm2d(4, gradient="constant").gradient == "constant"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("a b", Constant()), ValueError, "name must be letters, digits and underscores; got 'a b'"),
        (("clip", Constant()), ValueError, "there is a rule 'clip' already"),
        (("mine", Constant), TypeError, "rule must be a GradientRule"),
    ],
)
def test_registration_refuses_what_is_no_rule(own, arguments, error, message):
    with pytest.raises(error, match=message):
        eg.register_rule(*arguments)


class _Entry:
    name, value = "theirs", "package:rule"

    def __init__(self, rule):
        self.rule, self.loaded = rule, 0

    def load(self):
        self.loaded += 1
        return self.rule


def test_an_installed_package_may_name_a_rule_which_is_loaded_only_when_it_is_asked_for(monkeypatch):
    entry = _Entry(Constant(3.0))
    asked = []

    def entries(**which):
        asked.append(which)
        return [entry] if which["name"] == "theirs" else []

    monkeypatch.setattr(gradients, "entry_points", entries)
    assert resolve("clip") == eg.Clip()
    assert entry.loaded == 0
    assert asked == []
    assert resolve("theirs(value=4)") == Constant(4.0)
    entry.rule = 5
    with pytest.raises(TypeError, match="entry point 'package:rule' of 'theirs' is 5; expected a GradientRule"):
        resolve("theirs")


def test_parse_gives_numbers_their_type():
    assert parse_rule("a(b=1, c=1.0, d=true, e=None)") == ("a", {"b": 1, "c": 1.0, "d": True, "e": None})
