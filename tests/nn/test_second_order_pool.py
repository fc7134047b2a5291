"""Second-order pooling: closed forms, invariances, exact gradients for every method and output, transforms, errors."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.nn.second_order_pool import METHODS, PoolingMethod, SecondOrderPool2d, second_order_pool
from functions_matrix import gradient, randn, relative_error, rotation

F32, F64 = torch.float32, torch.float64
OUTPUTS = ["triu", "matrix", "features"]
#: Methods whose gradient is that of their value whatever the spectrum: no rule in between.
LYAPUNOV = ("mpa", "mtp")  # whose gradient is that of the exact root, at an approximate one
TRUE = [name for name, method in METHODS.items() if method.gradient == "exact" and name not in LYAPUNOV]
every_method = pytest.mark.parametrize("method", METHODS)
true_method = pytest.mark.parametrize("method", TRUE)
every_output = pytest.mark.parametrize("output", OUTPUTS)


def with_spectrum(*eigenvalues: float, count: int = 6, samples: int = 2) -> torch.Tensor:
    """Maps (samples, d, 1, count) with mean zero and this covariance, in another basis for each sample."""
    d, maps = len(eigenvalues), []
    for k in range(samples):
        rows = torch.cat([torch.ones(1, count, dtype=F64), randn(d, count, seed=k)])
        Q = torch.linalg.qr(rows.mT)[0][:, 1:].mT  # orthonormal, and orthogonal to the constant
        root = torch.tensor(eigenvalues, dtype=F64).sqrt()
        maps.append((rotation(d, seed=k) * root) @ Q * count**0.5)
    return torch.stack(maps).unsqueeze(-2)


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (N, C) and covariance (N, C, C), sample by sample from torch.cov."""
    points = x.flatten(2)
    return points.mean(-1), torch.stack([torch.cov(p, correction=0).reshape(x.shape[1], -1) for p in points])


# ------------------------------------------------------------------------------------------------------ closed forms


@pytest.mark.parametrize("count", [6, 3], ids=["M > C", "M < C"])
@pytest.mark.parametrize("power", [0.5, 0.3, 1.0, -0.5, -1.0])
def test_the_matrix_is_the_power_of_the_covariance(power, count):
    x = randn(2, 4, count, 1)
    S = second_order_pool(x, power=power, eps=0.1, output="matrix")
    L, V = torch.linalg.eigh(moments(x)[1] + 0.1 * torch.eye(4, dtype=F64))
    torch.testing.assert_close(S, (V * L.unsqueeze(-2) ** power) @ V.mT, rtol=0, atol=1e-12)


def test_the_outputs_are_the_matrix_its_upper_triangle_and_its_product_with_the_centred_features():
    x = randn(2, 3, 4, 5)
    S, v, y = (second_order_pool(x, output=output) for output in ("matrix", "triu", "features"))
    assert S.shape == (2, 3, 3)
    assert v.shape == (2, 6)
    assert y.shape == x.shape
    torch.testing.assert_close(v, torch.stack([S[:, i, j] for i in range(3) for j in range(i, 3)], -1), rtol=0, atol=0)
    expected = torch.einsum("nij,njhw->nihw", S, x - x.mean((2, 3), keepdim=True))
    torch.testing.assert_close(y, expected, rtol=1e-13, atol=1e-13)


def test_the_inverse_square_root_whitens_the_features():
    y = second_order_pool(randn(2, 3, 4, 5) + 7, power=-0.5, eps=0.0, output="features")
    mean, covariance = moments(y)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-12)
    torch.testing.assert_close(covariance, torch.eye(3, dtype=F64).expand(2, 3, 3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("power", [0.5, 0.3])
def test_the_frobenius_norm_is_the_normalisation_of_the_paper(power):
    x, eps = with_spectrum(4.0, 1.0, 0.25), 0.01
    S = second_order_pool(x, power=power, eps=eps, normalize="frobenius", output="matrix")
    L = torch.tensor([0.25, 1.0, 4.0], dtype=F64) + eps
    expected = L**power / (L ** (2 * power)).sum().sqrt()
    torch.testing.assert_close(torch.linalg.eigvalsh(S), expected.expand(2, 3), rtol=1e-12, atol=1e-12)


@every_output
@pytest.mark.parametrize("normalize", ["l2", "signed_sqrt"])
def test_what_comes_out_has_length_one(normalize, output):
    y = second_order_pool(randn(3, 4, 3, 3), normalize=normalize, output=output)
    torch.testing.assert_close(y.flatten(1).norm(dim=1), torch.ones(3, dtype=F64), rtol=1e-13, atol=0)


def test_bilinear_pooling_is_signed_square_roots_of_the_second_moment():
    x = randn(2, 3, 4, 5)
    points = x.flatten(2)
    B = torch.einsum("nim,njm->nij", points, points) / 20
    y = B.sign() * B.abs().sqrt()
    expected = y / y.flatten(1).norm(dim=1)[:, None, None]
    torch.testing.assert_close(second_order_pool(x, method="bilinear", output="matrix"), expected, rtol=1e-12, atol=0)


def test_improved_bilinear_pooling_takes_the_matrix_square_root_before():
    x = randn(2, 3, 4, 5)
    mean, covariance = moments(x)
    root = eg.matrix_sqrt(covariance + mean[:, :, None] * mean[:, None, :], eps=0.01)
    y = root.sign() * root.abs().sqrt()
    expected = y / y.flatten(1).norm(dim=1)[:, None, None]
    got = second_order_pool(x, method="improved_bilinear", output="matrix")
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("count", [8, 2], ids=["M > C", "M < C"])
def test_g2denet_is_the_square_root_of_the_embedding_of_a_gaussian(count):
    x, eps = randn(2, 3, count, 1) + 0.5, 0.05
    mean, covariance = moments(x)
    top = torch.cat([covariance + mean[:, :, None] * mean[:, None, :], mean[:, :, None]], -1)
    bottom = torch.cat([mean[:, None, :], torch.ones(2, 1, 1, dtype=F64)], -1)
    S = second_order_pool(x, method="g2denet", eps=eps, output="matrix")
    expected = torch.cat([top, bottom], -2) + eps * torch.eye(4, dtype=F64)
    torch.testing.assert_close(S @ S, expected, rtol=1e-12, atol=1e-12)


def test_deep_o2p_is_the_logarithm_of_the_second_moment():
    x = randn(2, 3, 4, 5)
    mean, covariance = moments(x)
    S = second_order_pool(x, method="deep_o2p", output="matrix")
    expected = covariance + mean[:, :, None] * mean[:, None, :] + 1e-3 * torch.eye(3, dtype=F64)
    torch.testing.assert_close(torch.linalg.matrix_exp(S), expected, rtol=1e-11, atol=1e-11)


def test_newton_schulz_with_many_steps_is_exact_and_with_five_is_not():
    x, G = with_spectrum(4.0, 1.0, 0.01), randn(2, 3, 3)
    options = {"eps": 1e-3, "output": "matrix"}

    def exact(x):
        return second_order_pool(x, **options)

    def newton(x, steps=25):
        return second_order_pool(x, method="isqrt_cov", steps=steps, **options)

    assert relative_error(newton(x), exact(x)) < 1e-13
    assert relative_error(gradient(newton, x, G), gradient(exact, x, G)) < 1e-10
    assert relative_error(newton(x, 5), exact(x)) > 1e-3


@pytest.mark.parametrize("method", ["exact", "svd_taylor", "mpn_cov"])
def test_methods_that_differ_in_their_gradient_have_the_same_value(method):
    x = randn(2, 4, 3, 3)
    torch.testing.assert_close(second_order_pool(x, method=method), second_order_pool(x), rtol=1e-12, atol=1e-12)


def test_a_rule_acts_on_the_spectrum_with_eps_on_the_diagonal_as_in_the_paper():
    x, eps, G = with_spectrum(0.02, 0.01, 0.0), 0.01, randn(2, 3, 3)

    def pool(x):
        return second_order_pool(x, gradient=eg.Taylor(degree=3), eps=eps, output="matrix")

    def algorithm_3(x):
        points = x.flatten(2) - x.flatten(2).mean(-1, keepdim=True)
        M = points @ points.mT / points.shape[-1] + eps * torch.eye(3, dtype=F64)
        L, V = eg.eigh(M, gradient=eg.Taylor(degree=3))
        return (V * L.sqrt().unsqueeze(-2)) @ V.mT

    g = gradient(pool, x, G)
    assert relative_error(g, gradient(algorithm_3, x, G)) < 1e-12
    # Taylor drops the share q^4, with q = (λ_j + eps)/(λ_i + eps) ≥ 1/3: that is not the exact gradient.
    assert relative_error(g, gradient(lambda x: second_order_pool(x, eps=eps, output="matrix"), x, G)) > 1e-3


# --------------------------------------------------------------------------------------------------------- gradients


@every_output
@pytest.mark.parametrize("method", [name for name in METHODS if name not in LYAPUNOV])
def test_gradients_are_those_of_the_value(method, output):
    # Ratios of 20 between the eigenvalues: q^10 is 1e-13, so that the rules too must agree with finite differences.
    x = with_spectrum(400.0, 20.0, 1.0).add(0.3).requires_grad_()
    assert gradcheck(lambda x: second_order_pool(x, method=method, output=output), x, atol=1e-6, rtol=1e-5)


@every_output
@true_method
@pytest.mark.parametrize("shape", [(2, 4, 3, 1), (1, 3, 1, 1), (1, 1, 2, 2)], ids=["M < C", "one point", "C = 1"])
def test_gradients_are_right_where_the_spectrum_has_ties(shape, method, output):
    x = randn(*shape).requires_grad_()
    options = {"method": method, "output": output, "eps": 0.1}
    assert gradcheck(lambda x: second_order_pool(x, **options), x, check_batched_grad=True, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("normalize", ["frobenius", "l2", "signed_sqrt"])
@every_output
def test_gradients_are_right_for_every_normalisation(normalize, output):
    x = randn(2, 3, 2, 2).requires_grad_()
    assert gradcheck(lambda x: second_order_pool(x, normalize=normalize, output=output), x, atol=1e-6, rtol=1e-5)


@true_method
@pytest.mark.parametrize("count", [5, 2], ids=["M > C", "M < C"])
def test_second_derivatives_and_forward_mode_are_right(count, method):
    x = randn(1, 3, count, 1).requires_grad_()

    def pool(x):
        return second_order_pool(x, method=method, eps=0.1)

    assert gradcheck(pool, x, check_forward_ad=True, check_backward_ad=False, atol=1e-6, rtol=1e-5)
    assert gradgradcheck(pool, x, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("method", "degree"), [("mpa", 40), ("mtp", 600)])
def test_approximants_of_a_high_degree_are_the_exact_pooling_with_its_gradient(method, degree):
    """For eigenvalues whose roots the Lyapunov solver's eight steps reach."""
    x, G = with_spectrum(4.0, 2.0, 1.0), randn(2, 3, 3)

    def pool(x, **options):
        return second_order_pool(x, eps=0.0, output="matrix", **options)

    assert relative_error(pool(x, method=method, steps=degree), pool(x)) < 1e-12
    g = gradient(lambda x: pool(x, method=method, steps=degree), x, G)
    assert relative_error(g, gradient(pool, x, G)) < 1e-3


@pytest.mark.parametrize("gradient", ["taylor", eg.PowerIteration(stop=False), eg.Clip(100.0)], ids=str)
def test_second_derivatives_are_right_for_the_rules_too(gradient):
    """Where they keep every eigenvector: what SVD-PI drops has no derivative."""
    x = with_spectrum(20.0, 1.0, count=4, samples=1).requires_grad_()
    assert gradgradcheck(lambda x: second_order_pool(x, gradient=gradient), x, atol=1e-5, rtol=1e-4)


def composed(x: torch.Tensor, eps: float) -> torch.Tensor:
    """The same layer in plain torch operations."""
    points = x.flatten(2) - x.flatten(2).mean(-1, keepdim=True)
    L, V = torch.linalg.eigh(points @ points.mT / points.shape[-1] + eps * torch.eye(x.shape[1], dtype=x.dtype))
    return (V * L.sqrt().unsqueeze(-2)) @ V.mT


@pytest.mark.parametrize("method", ["exact", "g2denet"])
def test_a_rank_deficient_gradient_in_float32_is_that_of_float64_where_torch_has_none(method):
    x = randn(4, 64, 4, 4)
    G = randn(4, 64 + (method == "g2denet"), 64 + (method == "g2denet"))

    def pool(x):
        return second_order_pool(x, method=method, output="matrix")

    truth = gradient(pool, x, G)
    assert relative_error(gradient(pool, x.float(), G.float()), truth) < 1e-4
    # The d×d problem, which the rank makes tied 48-fold, agrees with the m×m one that is solved instead.
    direct = METHODS[method]
    wide = PoolingMethod(moment=direct.moment, power=0.5 + 1e-15, eps=direct.eps)
    wide_gradient = gradient(lambda x: second_order_pool(x, method=wide, output="matrix"), x, G)
    assert relative_error(wide_gradient, truth) < 1e-10
    if method == "exact":
        assert not relative_error(gradient(lambda x: composed(x, 1e-2), x.float(), G.float()), truth) < 1e-2


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["constant", "zero", "duplicated", "dead", "one position"])
@every_output
@every_method
def test_degenerate_input_has_a_finite_gradient(method, output, kind):
    x = randn(2, 4, 3, 3, dtype=F32)
    if kind == "duplicated":
        x[:, 2:] = x[:, :2]
    elif kind == "dead":
        x[:, 1:3] = 0
    else:
        x = {"constant": torch.ones_like(x), "zero": torch.zeros_like(x), "one position": x[..., :1, :1]}[kind]
    # iSQRT-COV has no eps of its own, and the square root of zero has no gradient.
    options = {"eps": 1e-3} if method == "isqrt_cov" else {}
    y = second_order_pool(x, method=method, output=output, **options)
    assert torch.isfinite(y).all()
    assert torch.isfinite(gradient(lambda x: second_order_pool(x, method=method, output=output, **options), x, y)).all()


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_normalised_pooling_does_not_depend_on_the_scale(scale):
    x = randn(2, 4, 3, 3, dtype=F32)
    for normalize in ("frobenius", "l2", "signed_sqrt"):
        expected = second_order_pool(x, eps=1e-2, normalize=normalize)
        got = second_order_pool(x * scale, eps=1e-2 * scale**2, normalize=normalize)
        assert relative_error(got, expected) < 1e-5


# ------------------------------------------------------------------------------------------------------- invariances


@every_method
def test_the_order_of_positions_does_not_matter(method):
    x = randn(2, 4, 3, 3)
    moved = x.flatten(2)[..., torch.randperm(9, generator=torch.Generator().manual_seed(0))].unflatten(-1, (3, 3))
    got, expected = (second_order_pool(z, method=method) for z in (moved, x))
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.moment != "gaussian"])
def test_a_rotation_of_the_channels_and_the_sign_of_the_features(method):
    x, Q = randn(2, 4, 3, 3), rotation(4)
    options = {"method": method, "normalize": None, "output": "matrix"}
    S = second_order_pool(x, **options)
    rotated = second_order_pool(torch.einsum("ij,njhw->nihw", Q, x), **options)
    torch.testing.assert_close(rotated, Q @ S @ Q.mT, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(second_order_pool(-x, **options), S, rtol=1e-11, atol=1e-11)


def test_a_constant_added_to_the_features_matters_only_where_they_are_not_centred():
    x = randn(2, 4, 3, 3)
    for name, method in METHODS.items():
        same = relative_error(second_order_pool(x + 100, method=name), second_order_pool(x, method=name)) < 1e-10
        assert same == (method.moment == "covariance"), name


def test_a_mean_far_from_zero_costs_no_accuracy():
    x = (randn(2, 4, 8, 8) * 16).round() / 16  # so that adding 1000 rounds nothing
    got = second_order_pool((x + 1000).float())
    assert relative_error(got, second_order_pool(x)) < 1e-4


@pytest.mark.parametrize("neighbour", [1e6, 1e-6, 0.0], ids=str)
@every_method
def test_a_sample_does_not_notice_its_neighbours(method, neighbour):
    x, other = randn(1, 4, 3, 3), neighbour * randn(1, 4, 3, 3, seed=1)

    def pool(x):
        return second_order_pool(x, method=method, eps=1e-2)

    pair = torch.cat([other, x])
    G = randn(*pool(pair).shape)
    assert relative_error(pool(pair)[1:], pool(x)) < 1e-13
    assert relative_error(gradient(pool, pair, G)[1:], gradient(pool, x, G[1:])) < 1e-11


@every_output
@every_method
def test_an_empty_batch_and_a_single_sample(method, output):
    x = randn(2, 4, 3, 3)
    y = second_order_pool(x, method=method, output=output)
    torch.testing.assert_close(second_order_pool(x[0], method=method, output=output), y[0], rtol=1e-11, atol=1e-11)
    empty = second_order_pool(x[:0], method=method, output=output)
    assert empty.shape == (0, *y.shape[1:])
    g = gradient(lambda x: second_order_pool(x, method=method, output=output), x[:0], empty)
    assert g.shape == (0, 4, 3, 3)


# ---------------------------------------------------------------------------------------------- precision, transforms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@every_method
def test_half_precision_is_computed_in_float32_and_cast_back(method, dtype):
    x = randn(2, 4, 3, 3).to(dtype)
    y = second_order_pool(x, method=method)
    assert y.dtype == dtype
    torch.testing.assert_close(y, second_order_pool(x.float(), method=method).to(dtype), rtol=0, atol=0)


@every_output
@every_method
def test_autocast_changes_neither_value_nor_gradient(method, output):
    x = randn(2, 4, 3, 3, dtype=F32)

    def pool(x):
        return second_order_pool(x, method=method, output=output)

    value = pool(x)
    g = gradient(pool, x, torch.ones_like(value))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pool(x), value)
        assert torch.equal(gradient(pool, x, torch.ones_like(value)), g)


QUICK = {"exact", "svd_taylor", "isqrt_cov", "g2denet"}  # the others compile for seconds each


@pytest.mark.parametrize(
    ("method", "count"),
    [
        *(pytest.param(name, 6, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS),
        ("exact", 1),
        pytest.param("g2denet", 1, marks=pytest.mark.slow),
    ],
)
def test_compile_and_vmap_agree_with_eager(method, count, dynamo):
    # The compiler unrolls iterations: two of them are enough to see.
    options = {"svd_pi": {"gradient": eg.PowerIteration(steps=2)}, "isqrt_cov": {"steps": 2}}.get(method, {})
    pool = SecondOrderPool2d(4, 2, method=method, eps=0.01, dtype=F64, **options)
    x, G = randn(2, 4, count, 1), randn(2, pool.num_features)
    value, g = pool(x), gradient(pool, x, G)
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), value, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient(compiled, x, G), g, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.func.vmap(pool)(x), value, rtol=1e-11, atol=1e-11)
    per_sample = torch.func.vmap(torch.func.grad(lambda x, G: (pool(x) * G).sum()))(x, G)
    torch.testing.assert_close(per_sample, g, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["exact", "isqrt_cov", "svd_taylor"])
def test_the_layer_can_be_exported_for_any_batch(method):
    pool = SecondOrderPool2d(4, 3, method=method).eval()
    x = randn(5, 4, 2, 2, dtype=F32)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(pool, (x[:3],), dynamic_shapes=({0: batch},), strict=False)
    torch.testing.assert_close(program.module()(x), pool(x))


# --------------------------------------------------------------------------------------------------------- the layer


def test_the_layer_is_the_function_after_a_convolution():
    torch.manual_seed(0)
    pool = SecondOrderPool2d(5, 3, method="mpn_cov", power=0.4, eps=0.1, normalize="frobenius", output="matrix")
    x = randn(2, 5, 3, 3, dtype=F32)
    reduced = torch.einsum("oi,nihw->nohw", pool.reduction.weight[:, :, 0, 0], x)
    options = {"gradient": eg.Clip(100.0), "power": 0.4, "eps": 0.1, "normalize": "frobenius", "output": "matrix"}
    torch.testing.assert_close(pool(x), second_order_pool(reduced, **options))
    torch.testing.assert_close(SecondOrderPool2d(method="g2denet")(x), second_order_pool(x, method="g2denet"))


def test_the_layer_follows_the_conventions_of_torch_nn():
    pool = SecondOrderPool2d(5, 3, dtype=F64, device="cpu")
    assert list(pool.state_dict()) == ["reduction.weight"]
    assert pool.reduction.weight.dtype == F64
    other = SecondOrderPool2d(5, 3, dtype=F64)
    x = randn(2, 5, 3, 3)
    assert not torch.equal(other(x), pool(x))
    other.load_state_dict(pool.state_dict())
    assert torch.equal(other(x), pool(x))
    pool.reset_parameters()
    assert not torch.equal(other(x), pool(x))
    assert list(SecondOrderPool2d(5).parameters()) == []
    text = repr(SecondOrderPool2d(5, 3, power=0.3, gradient="taylor", output="matrix"))
    for part in ("5, 3", "power=0.3", "gradient='taylor'", "output='matrix'"):
        assert part in text


@every_method
def test_num_features_is_the_length_of_the_output(method):
    pool = SecondOrderPool2d(4, method=method)
    assert pool(randn(2, 4, 3, 3)).shape == (2, pool.num_features)


def test_the_layer_trains():
    # Two classes that differ in the sign of a correlation: no mean tells them apart.
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    z = torch.randn(64, 2, 5, 5, generator=generator)
    labels = torch.arange(64) % 2
    sign = (2.0 * labels - 1)[:, None, None]
    x = torch.stack([z[:, 0], 0.8 * sign * z[:, 0] + 0.6 * z[:, 1]], 1)
    model = torch.nn.Sequential(SecondOrderPool2d(2, 4), torch.nn.Linear(10, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    assert (model(x).argmax(-1) == labels).float().mean() > 0.95


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("x", "options", "kind", "message"),
    [
        ([1.0], {}, TypeError, "x must be a torch.Tensor; got list"),
        (torch.ones(2, 3), {}, ValueError, r"\(N, C, H, W\) or \(C, H, W\); got \(2, 3\)"),
        (torch.ones(1, 2, 3, 3, dtype=torch.int64), {}, TypeError, "floating-point type; got torch.int64"),
        (torch.ones(1, 2, 3, 3, dtype=torch.complex64), {}, TypeError, "floating-point type; got torch.complex64"),
        (torch.ones(1, 0, 3, 3), {}, ValueError, "at least 1 channel"),
        (torch.ones(1, 2, 3, 3), {"method": "mpn"}, ValueError, "method: got 'mpn'.*'bilinear'.*'svd_taylor'"),
        (torch.ones(1, 2, 3, 3), {"method": 3}, TypeError, "method: got 3; expected a PoolingMethod"),
        (
            torch.ones(1, 2, 3, 3),
            {"output": "vector"},
            ValueError,
            "output: got 'vector'.*'features', 'matrix', 'triu'",
        ),
        (torch.ones(1, 2, 3, 3), {"normalize": "l1"}, ValueError, "normalize: got 'l1'.*'frobenius', 'l2'"),
        (torch.ones(1, 2, 3, 3), {"gradient": "taylr"}, ValueError, "gradient: got 'taylr'.*'taylor'"),
        (torch.ones(1, 2, 3, 3), {"power": "half"}, TypeError, "power must be a number; got 'half'"),
        (torch.ones(1, 2, 3, 3), {"eps": -1.0}, ValueError, r"eps must not be negative; got -1\.0"),
        (torch.ones(1, 2, 3, 3), {"method": "deep_o2p", "power": 0.5}, ValueError, "power means nothing.*'log'"),
        (torch.ones(1, 2, 3, 3), {"method": "isqrt_cov", "gradient": "taylor"}, ValueError, "gradient means nothing"),
        (torch.ones(1, 2, 3, 3), {"steps": 3}, ValueError, "steps means nothing"),
        (torch.full((1, 2, 3, 3), torch.nan), {}, eg.NonFiniteError, "second_order_pool: batch element 0"),
    ],
)
def test_misuse_names_the_argument_and_what_came(x, options, kind, message):
    with pytest.raises(kind, match=message):
        second_order_pool(x, **options)


def test_misuse_of_the_layer_names_the_argument_and_what_came():
    with pytest.raises(ValueError, match=r"x must have 5 channels; got shape \(1, 4, 2, 2\)"):
        SecondOrderPool2d(5, 3)(torch.ones(1, 4, 2, 2))
    with pytest.raises(ValueError, match="in_channels must be given to reduce to channels=3"):
        SecondOrderPool2d(channels=3)
    with pytest.raises(TypeError, match="in_channels must be an integer; got 'x'"):
        SecondOrderPool2d("x")
    with pytest.raises(ValueError, match="num_features is known only if in_channels is given"):
        _ = SecondOrderPool2d().num_features
    with pytest.raises(ValueError, match="moment: got 'mean'"):
        PoolingMethod(moment="mean")
