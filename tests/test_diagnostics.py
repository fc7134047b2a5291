"""spectrum_report against numbers worked out by hand; GradientMonitor: counts, shares, nesting, no waiting."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import eigengrad as eg
from eigengrad.gradients import lift
from eigengrad.gradients.observation import observers
from functions_matrix import matrix, randn

F32, F64 = torch.float32, torch.float64


def diagonal(*values, dtype=F64):
    return torch.diag(torch.tensor(values, dtype=dtype))


# ---------------------------------------------------------------------------------------------------- spectrum_report


def test_the_report_of_one_two_four_is_what_one_works_out_by_hand():
    report = eg.spectrum_report(diagonal(1.0, 2.0, 4.0), gradient=eg.Taylor(degree=9, eps=0.01))
    assert report.size == 3
    assert report.relative_gap.item() == 1 / 4
    assert report.condition.item() == 4.0
    assert report.tied.item() == 0.0
    assert report.bound.item() == pytest.approx(3 * 10 / 0.01, rel=1e-12)
    expected = {"exact": 1.0, "taylor": 1 - 0.5**10, "clip": 1.0, "mask": 1.0, "truncate": 1.0, "lorentzian": 1.0}
    for name, value in expected.items():
        assert report.amplification[name].item() == pytest.approx(value, rel=1e-10), name


def test_the_paper_s_spectrum_has_the_paper_s_amplification():
    report = eg.spectrum_report(diagonal(0.01, 0.01, 0.02))
    assert report.relative_gap.item() == 0.0
    assert report.condition.item() == pytest.approx(2.0)
    assert report.tied.item() == pytest.approx(2 / 3)
    assert report.amplification["exact"].item() == torch.inf
    assert report.amplification["taylor"].item() == pytest.approx(1000.0, rel=1e-10)
    assert report.amplification["clip"].item() == pytest.approx(100.0)
    assert report.amplification["mask"].item() == pytest.approx(100.0)


def test_condition_and_gap_of_an_indefinite_matrix_use_absolute_values():
    report = eg.spectrum_report(diagonal(-4.0, 1.0, 2.0))
    assert report.condition.item() == 4.0
    assert report.relative_gap.item() == 1 / 4


def test_a_singular_matrix_has_infinite_condition():
    assert eg.spectrum_report(diagonal(0.0, 1.0)).condition.item() == torch.inf


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_relative_numbers_do_not_depend_on_the_scale(scale):
    A = diagonal(1.0, 1.0, 4.0)
    for got, expected in zip(
        *((r.relative_gap, r.condition, r.tied) for r in (eg.spectrum_report(A * scale), eg.spectrum_report(A))),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("rule", [eg.Clip(threshold=7.0), eg.Taylor(degree=3), eg.Truncate(rank=2)], ids=repr)
def test_a_rule_of_one_s_own_is_reported_next_to_the_named_ones(rule):
    report = eg.spectrum_report(diagonal(1.0, 1.0, 4.0), gradient=rule)
    expected = {"Clip": 7.0, "Taylor": 4.0, "Truncate": 1 / 3}[type(rule).__name__]
    assert report.amplification[repr(rule)].item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)], ids=str)
def test_every_field_has_the_batch_shape(batch):
    report = eg.spectrum_report(diagonal(1.0, 2.0, 4.0).expand(*batch, 3, 3))
    for field in (report.relative_gap, report.condition, report.tied, report.bound, *report.amplification.values()):
        assert field.shape == batch
    assert str(report)


def test_each_matrix_of_a_batch_has_its_own_numbers():
    report = eg.spectrum_report(torch.stack([diagonal(1.0, 2.0, 4.0), diagonal(5.0, 5.0, 5.0)]))
    assert report.condition.tolist() == [4.0, 1.0]
    assert report.tied.tolist() == [0.0, 1.0]


def test_size_one_has_no_gap():
    report = eg.spectrum_report(torch.full((1, 1), 3.0))
    assert report.relative_gap.item() == torch.inf
    assert report.condition.item() == 1.0
    assert report.tied.item() == 0.0
    assert all(value.item() == 0.0 for value in report.amplification.values())
    assert "1 matrix of size 1" in str(report)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_size_zero_is_reported_too(batch):
    report = eg.spectrum_report(torch.zeros(*batch, 0, 0))
    assert report.size == 0
    assert report.relative_gap.shape == report.condition.shape == report.tied.shape == report.bound.shape == batch
    assert "size 0" in str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_half_and_complex_matrices_are_reported(dtype):
    report = eg.spectrum_report(diagonal(1.0, 2.0, 4.0, dtype=dtype))
    assert report.condition.item() == pytest.approx(4.0)


def test_the_report_leaves_no_graph():
    report = eg.spectrum_report(diagonal(1.0, 2.0).requires_grad_())
    assert not report.condition.requires_grad


def test_the_text_has_a_line_for_every_number_with_space_between_name_and_number():
    rule = eg.Taylor(degree=9, eps=0.01)
    report = eg.spectrum_report(torch.stack([diagonal(1.0, 2.0, 4.0), diagonal(1.0, 1.0, 9.0)]), gradient=rule)
    text = str(report)
    lines = text.splitlines()
    assert lines[0] == "2 matrices of size 3"
    for name in report.amplification:
        (line,) = [line for line in lines if line.strip().startswith(name) and "%" not in line]
        rest = line.strip().removeprefix(name)
        assert rest.startswith("  "), f"glued: {line!r}"
        assert float(rest.split()[0]) >= 0 or name == "unit_norm_or_nan"
    assert any("condition" in line and "4 … 9" in line for line in lines)
    assert any("tied" in line and "0 … 66.7 %" in line for line in lines)
    starts = {len(line) - len(line.lstrip()) for line in lines[1:]}
    assert starts <= {2, 4}


def test_the_text_has_its_numbers_in_one_column():
    lines = str(eg.spectrum_report(diagonal(1.0, 2.0, 4.0), gradient=eg.Taylor(degree=9, eps=0.01))).splitlines()
    rules = [line for line in lines if line.startswith("    ")]
    assert len(rules) > 3
    assert len({line.rindex(" ") for line in rules}) == 1


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ([[1.0]], TypeError, "spectrum_report: A must be a torch.Tensor; got list"),
        (torch.ones(2, 3), ValueError, r"spectrum_report: .*square.*\(2, 3\)"),
        (torch.eye(2, dtype=torch.int64), TypeError, "spectrum_report: .*torch.int64"),
    ],
    ids=["list", "rectangular", "integer"],
)
def test_the_report_refuses_what_is_no_square_matrix(bad, kind, message):
    with pytest.raises(kind, match=message):
        eg.spectrum_report(bad)


def test_the_report_refuses_an_unknown_rule():
    with pytest.raises(ValueError, match=r"gradient.*'tailor'.*'taylor'"):
        eg.spectrum_report(torch.eye(2), gradient="tailor")


# ---------------------------------------------------------------------------------------------------- GradientMonitor


def differentiate(A, rule="taylor"):
    A = A.clone().requires_grad_()
    V = eg.eigh(A, gradient=rule).eigenvectors
    (V * randn(*V.shape, dtype=V.dtype)).sum().backward()


def test_the_monitor_counts_derivatives_matrices_and_pairs():
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(1.0, 2.0, 4.0).expand(5, 3, 3))
        differentiate(diagonal(1.0, 2.0))
    assert (monitor.calls, monitor.matrices, monitor.pairs) == (2, 6, 5 * 3 + 1)


def test_before_anything_happens_every_number_is_zero():
    monitor = eg.GradientMonitor()
    assert (monitor.calls, monitor.matrices, monitor.pairs) == (0, 0, 0)
    assert (monitor.acted, monitor.removed, monitor.amplification) == (0.0, 0.0, 0.0)
    assert "0 derivatives" in str(monitor)


@pytest.mark.parametrize("degree", [0, 2, 9])
@pytest.mark.parametrize("q", [0.25, 0.9, 1.0])
def test_taylor_removes_q_to_the_degree_plus_one(degree, q):
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(q, 1.0), eg.Taylor(degree=degree))
    assert monitor.removed == pytest.approx(q ** (degree + 1), rel=1e-5, abs=1e-7)
    assert monitor.amplification == pytest.approx(sum(q**k for k in range(degree + 1)), rel=1e-10)


def test_the_mean_share_is_over_all_pairs_of_all_matrices():
    with eg.GradientMonitor() as monitor:
        differentiate(torch.stack([diagonal(0.5, 1.0), diagonal(1.0, 1.0)]), eg.Taylor(degree=0))
        differentiate(diagonal(0.25, 0.5, 1.0), eg.Taylor(degree=0))
    assert monitor.removed == pytest.approx((0.5 + 1.0 + (0.5 + 0.25 + 0.5)) / 5, rel=1e-6)


def test_a_tied_pair_counts_as_acted_upon_and_separated_ones_do_not():
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(1.0, 1.0, 4.0))
    assert monitor.acted == pytest.approx(1 / 3)


def test_the_threshold_says_what_counts_as_acting():
    A = diagonal(0.8, 1.0)  # Taylor of degree 2 removes 0.8³ = 0.512
    with eg.GradientMonitor(threshold=0.5) as low, eg.GradientMonitor(threshold=0.52) as high:
        differentiate(A, eg.Taylor(degree=2))
    assert (low.acted, high.acted) == (1.0, 0.0)


def test_the_exact_rule_on_separated_eigenvalues_removes_nothing():
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(1.0, 2.0, 4.0), "exact")
    assert monitor.acted == 0.0
    assert monitor.removed == pytest.approx(0.0, abs=1e-7)
    assert monitor.amplification == pytest.approx(1.0)


def test_truncation_removes_the_pairs_it_drops():
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(1.0, 2.0, 4.0), eg.Truncate(rank=2))
    assert monitor.acted == pytest.approx(2 / 3)


def test_nested_monitors_each_see_what_happens_while_they_are_entered():
    with eg.GradientMonitor() as outer:
        differentiate(diagonal(1.0, 2.0))
        with eg.GradientMonitor() as inner:
            differentiate(diagonal(1.0, 2.0, 4.0))
        differentiate(diagonal(1.0, 2.0))
    assert (inner.calls, inner.pairs) == (1, 3)
    assert (outer.calls, outer.pairs) == (3, 5)


def test_after_the_context_nothing_is_recorded():
    before = list(observers)
    with eg.GradientMonitor() as monitor:
        pass
    differentiate(diagonal(1.0, 2.0))
    assert monitor.calls == 0
    assert observers == before


def test_an_exception_leaves_no_observer_behind():
    before = list(observers)
    with pytest.raises(ZeroDivisionError), eg.GradientMonitor(), eg.GradientMonitor():
        raise ZeroDivisionError
    assert observers == before


def test_a_monitor_can_be_entered_again_and_goes_on_counting():
    monitor = eg.GradientMonitor()
    for _ in range(2):
        with monitor:
            differentiate(diagonal(1.0, 2.0))
    assert monitor.calls == 2


def test_the_forward_pass_alone_is_not_a_derivative():
    with eg.GradientMonitor() as monitor:
        eg.eigh(diagonal(1.0, 2.0))
    assert monitor.calls == 0


def test_forward_mode_is_a_derivative_too():
    A = diagonal(0.5, 1.0)
    with eg.GradientMonitor() as monitor:
        torch.func.jvp(lambda X: eg.eigh(X, gradient=eg.Taylor(degree=0)).eigenvectors, (A,), (torch.ones_like(A),))
    assert monitor.calls == 1
    assert monitor.removed == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 4)], ids=str)
def test_pairs_of_svd_are_those_of_its_singular_values(shape):
    A = torch.zeros(shape, dtype=F64)
    A[:3, :3] = diagonal(1.0, 2.0, 4.0)
    A.requires_grad_()
    with eg.GradientMonitor() as monitor:
        U, _, Vh = eg.svd(A, full_matrices=False)
        (U[0].sum() + Vh[0].sum()).backward()
    assert (monitor.calls, monitor.matrices) == (1, 1)
    assert monitor.pairs == 3


def test_the_share_removed_in_svd_is_that_of_the_singular_values():
    A = torch.diag(torch.tensor([0.5, 1.0], dtype=F64)).requires_grad_()
    with eg.GradientMonitor() as monitor:
        eg.svd(A, gradient=eg.Taylor(degree=0)).U.sum().backward()
    assert monitor.removed == pytest.approx(0.5, rel=1e-5)


def test_exact_matrix_functions_use_no_rule_and_rules_in_them_are_seen():
    A = diagonal(1.0, 1.0, 4.0).requires_grad_()
    with eg.GradientMonitor() as exact:
        eg.matrix_sqrt(A).sum().backward()
    with eg.GradientMonitor() as taylor:
        eg.matrix_sqrt(A, gradient="taylor").sum().backward()
    assert (exact.calls, exact.matrices, exact.pairs, exact.lost) == (1, 1, 0, 0.0)
    assert (taylor.calls, taylor.acted) == (1, pytest.approx(1 / 3))


def test_monitoring_changes_no_gradient():
    def run():
        A = matrix([1.0, 1.0, 2.0]).requires_grad_()
        (eg.eigh(A).eigenvectors ** 3).sum().backward()
        return A.grad

    alone = run()
    with eg.GradientMonitor():
        # To round-off: where a tensor lies in memory is enough to change the last bit of a product.
        torch.testing.assert_close(run(), alone, rtol=1e-13, atol=1e-13)


def test_single_and_double_precision_may_be_mixed():
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(0.5, 1.0, dtype=F32), eg.Taylor(degree=0))
        differentiate(diagonal(1.0, 1.0, dtype=F64), eg.Taylor(degree=0))
    assert monitor.removed == pytest.approx(0.75, rel=1e-6)


def test_per_sample_gradients_under_vmap_are_counted():
    A = torch.stack([diagonal(0.5, 1.0), diagonal(1.0, 1.0)])
    with eg.GradientMonitor() as monitor:
        per_sample = torch.func.grad(lambda X: (eg.eigh(X, gradient=eg.Taylor(degree=0)).eigenvectors ** 3).sum())
        torch.func.vmap(per_sample)(A)
    assert monitor.removed == pytest.approx(0.75, rel=1e-6)
    assert (monitor.matrices, monitor.pairs) == (2, 2)


def test_the_text_of_the_monitor_says_how_often_and_how_strongly():
    with eg.GradientMonitor() as monitor:
        differentiate(diagonal(1.0, 1.0, 4.0))
    text = str(monitor)
    assert "1 derivative" in text
    assert "3 pairs" in text
    assert "33.3 %" in text
    assert "largest |R| 10" in text


def test_an_empty_batch_is_no_trouble():
    with eg.GradientMonitor() as monitor:
        differentiate(torch.zeros(0, 3, 3, dtype=F64))
    assert monitor.pairs == 0
    assert (monitor.acted, monitor.removed, monitor.amplification) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("threshold", ["0.5", None], ids=repr)
def test_a_threshold_that_is_no_number_is_refused_at_once(threshold):
    with pytest.raises(TypeError, match="threshold"):
        eg.GradientMonitor(threshold=threshold)


class NoWaiting(TorchDispatchMode):
    """Fails where a number leaves the device: .item(), float(), bool(), nonzero()."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.equal,
        ):
            raise AssertionError(f"the host waited for the device: {function}")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("decompose", ["eigh", "svd"])
def test_recording_never_waits_for_the_device_and_reading_does(decompose, monkeypatch):
    monkeypatch.setattr(lift, "can_read", lambda *tensors: False)  # as off the CPU: there nobody looks at numbers
    A = matrix([1.0, 1.0, 2.0]).requires_grad_()
    function = getattr(eg, decompose)
    with eg.GradientMonitor() as monitor:
        vectors = function(A)[1 if decompose == "eigh" else 0]
        loss = (vectors**3).sum()
        with NoWaiting():
            loss.backward()
            with pytest.raises(AssertionError, match="waited"):
                _ = monitor.removed
    assert monitor.calls == 1


def test_the_rank_that_rules_keep_is_seen():
    x = torch.diag(torch.tensor([0.0, 0.0, 0.5, 1.0]))
    with eg.GradientMonitor() as monitor:
        A = x.clone().requires_grad_()
        eg.eigh(A, gradient="power_iteration").eigenvectors.square().sum().backward()
    assert monitor.rank == 2
    assert "2 eigenvectors kept" in str(monitor)
    with eg.GradientMonitor() as monitor:
        A = torch.stack([x, x + torch.eye(4)]).requires_grad_()
        eg.eigh(A, gradient=eg.Truncate(rank=3)).eigenvectors.square().sum().backward()
    assert monitor.rank == 3
    with eg.GradientMonitor() as monitor:
        A = x.clone().requires_grad_()
        eg.eigh(A, gradient="taylor").eigenvectors.square().sum().backward()
    assert math.isnan(monitor.rank)


@pytest.mark.parametrize("gradient", ["exact", "taylor", "power_iteration", "clip(threshold=0.5)"])
def test_every_method_of_a_whitening_layer_is_seen(gradient):
    torch.manual_seed(0)
    layer = eg.nn.DecorrelatedBatchNorm2d(8, group_size=4, gradient=gradient)
    x = torch.randn(4, 8, 5, 5, requires_grad=True)
    y = layer(x)
    with eg.GradientMonitor() as monitor:
        y[:, ::2].square().sum().backward()
    assert monitor.matrices == 2
    assert (monitor.lost == 0) == (gradient == "exact")


@pytest.mark.parametrize("method", ["pi", "newton_schulz", "pade", "taylor"])
def test_whitening_by_iterations_is_compared_with_the_exact_gradient(method):
    def layer(steps):
        if method == "pi":
            return eg.nn.DecorrelatedBatchNorm2d(8, 1e-2, group_size=4, gradient=f"pi(steps={steps})").double()
        return eg.nn.IterativeNorm(8, 1e-2, group_size=4, method=method, steps=steps).double()

    lost = []
    for steps in (1, 200):
        torch.manual_seed(0)
        x = (torch.randn(16, 8, 5, 5, dtype=torch.float64) * torch.linspace(1, 2, 8).view(-1, 1, 1)).requires_grad_()
        y = layer(steps)(x)
        with eg.GradientMonitor() as monitor:
            y[:, ::2].square().sum().backward()
        assert monitor.matrices == 2
        lost.append(monitor.lost)
    assert lost[0] > 1e-3
    assert lost[1] < 0.2 * lost[0]
