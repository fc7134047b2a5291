"""Rigid motions and similarities between points: values, exact derivatives, degenerate clouds, weights, errors."""

from __future__ import annotations

from itertools import product

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import randn, relative_error, rotation
from mp_rotations import as_matrix, exact_gradient, inner, polar_factor

F32, F64 = torch.float32, torch.float64
OPTIONS = [{"scale": s, "translation": t} for s, t in product([False, True], repeat=2)]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ", ".join(k for k in o if o[k]) or "rotation")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def proper(n, seed=0):
    """A random rotation."""
    R = rotation(n, seed=seed)
    return R if torch.linalg.det(R) > 0 else torch.cat([-R[:1], R[1:]])


def random_like(x, seed=0):
    return randn(x.numel(), dtype=x.dtype, seed=seed).view(x.shape)


def moved(P, R, t=0.0, s=1.0):
    return s * P @ R.mT + t


def cloud(m=6, d=3, seed=0):
    """Points and their counterparts after a motion, with noise."""
    P = randn(m, d, seed=seed)
    return P, moved(P, proper(d, seed), randn(d, seed=seed + 1), 1.7) + 0.1 * randn(m, d, seed=seed + 2)


def residual(P, Q, weights, R, t, s):
    difference = s[..., None, None] * P @ R.mT + t.unsqueeze(-2) - Q
    return (weights.unsqueeze(-1) * difference**2).sum((-2, -1))


OCTAHEDRON = torch.cat([torch.eye(3, dtype=F64), -torch.eye(3, dtype=F64)])
REFLECTION = torch.tensor([1.0, 1.0, -1.0], dtype=F64)

#: Points and counterparts for which the best rotation has derivatives.
CLOUDS = {
    "generic": cloud(),
    "the same points": (randn(6, 3), randn(6, 3)),
    "octahedron": (OCTAHEDRON, OCTAHEDRON.clone()),
    "octahedron, turned": (OCTAHEDRON, moved(OCTAHEDRON, proper(3), 1.0, 2.0)),
    "stretched reflection": (randn(6, 3), randn(6, 3) * torch.tensor([1.0, 1.0, -0.3], dtype=F64)),
    "in a plane": (randn(6, 3) * torch.tensor([1.0, 1.0, 0.0], dtype=F64), cloud()[1]),
    "2 dimensions": cloud(4, 2),
    "2 dimensions, 2 points": cloud(2, 2),
    "4 dimensions": cloud(7, 4),
}
every_cloud = pytest.mark.parametrize("name", CLOUDS)


# ------------------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_similarity_is_recovered(weighted, d, dtype):
    P, R, t = randn(7, d), proper(d, 1), randn(d, seed=2)
    Q = moved(P, R, t, 2.5)
    weights = torch.rand(7, dtype=dtype) if weighted else None
    found = eg.kabsch(P.to(dtype), Q.to(dtype), weights, scale=True)
    for got, expected in zip(found, (R, t, torch.tensor(2.5)), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=64 * torch.finfo(dtype).eps)


@every_option
@every_cloud
def test_no_other_transform_is_closer(name, options):
    P, Q = CLOUDS[name]
    m, d = P.shape
    weights = torch.rand(m, dtype=F64)
    R, t, s = eg.kabsch(P, Q, weights, **options)
    best = residual(P, Q, weights, R, t, s)
    torch.testing.assert_close(R.mT @ R, torch.eye(d, dtype=F64), rtol=0, atol=1e-13)
    assert torch.linalg.det(R).item() == pytest.approx(1.0, abs=1e-13)
    near = eg.polar(R + 0.02 * torch.randn(200, d, d, dtype=F64), special=True).U
    far = torch.stack([proper(d, k) for k in range(200)])
    moves = 0.02 * torch.randn(200, d, dtype=F64) if options["translation"] else torch.zeros(200, d, dtype=F64)
    factors = 1 + 0.02 * torch.randn(200, dtype=F64) if options["scale"] else torch.ones(200, dtype=F64)
    for others in (near, far, R.expand(200, d, d)):
        assert (residual(P, Q, weights, others, t + moves, s * factors) >= best - 1e-12).all()


def test_without_options_scale_and_translation_are_one_and_zero():
    P, Q = cloud()
    R, t, s = eg.kabsch(P, Q, translation=False)
    assert torch.equal(t, torch.zeros(3, dtype=F64))
    assert torch.equal(s, torch.ones((), dtype=F64))
    torch.testing.assert_close(R.mT, eg.procrustes(P, Q, special=True))


def test_weights_count_how_often_a_point_occurs():
    P, Q = cloud(4)
    counts = [1, 3, 0, 2]
    repeated = (torch.cat([X[i : i + 1].expand(k, 3) for i, k in enumerate(counts)]) for X in (P, Q))
    expected = eg.kabsch(*repeated, scale=True)
    for unit in (1.0, 1e-300, 1e300):
        got = eg.kabsch(P, Q, unit * torch.tensor(counts, dtype=F64), scale=True)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_batches_of_points_and_weights_broadcast():
    P, Q, weights = randn(2, 1, 5, 3), randn(4, 5, 3, seed=1), torch.rand(3, 1, 1, 5, dtype=F64)
    R, t, s = eg.kabsch(P, Q, weights, scale=True)
    assert (R.shape, t.shape, s.shape) == ((3, 2, 4, 3, 3), (3, 2, 4, 3), (3, 2, 4))
    one = eg.kabsch(P[1, 0], Q[2], weights[2, 0, 0], scale=True)
    for got, expected in zip((R, t, s), one, strict=True):
        torch.testing.assert_close(got[2, 1, 2], expected)


def test_an_empty_batch_has_transforms_and_gradients():
    P = torch.zeros(0, 5, 3, requires_grad=True)
    R, t, s = eg.kabsch(P, torch.zeros(5, 3), torch.ones(0, 5), scale=True)
    assert (R.shape, t.shape, s.shape) == ((0, 3, 3), (0, 3), (0,))
    (R.sum() + t.sum() + s.sum()).backward()
    assert P.grad.shape == P.shape


# ------------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.sample(1)
@every_option
@every_cloud
def test_first_derivatives_are_exact_in_points_and_weights(name, options):
    P, Q = (X.clone().requires_grad_() for X in CLOUDS[name])
    weights = (torch.rand(P.shape[0], dtype=F64) + 0.5).requires_grad_()

    variable = ["rotation", *(part for part in options if options[part])]

    def call(P, Q, weights):
        transform = eg.kabsch(P, Q, weights, **options)
        return tuple(getattr(transform, part) for part in variable)

    assert gradcheck(call, (P, Q, weights), check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)


@every_cloud
def test_second_derivatives_are_exact_in_points_and_weights(name):
    P, Q = (X.clone().requires_grad_() for X in CLOUDS[name])
    weights = (torch.rand(P.shape[0], dtype=F64) + 0.5).requires_grad_()

    def call(P, Q, weights):
        return tuple(eg.kabsch(P, Q, weights, scale=True))

    options = {"check_fwd_over_rev": True, "check_batched_grad": True, "atol": 1e-5, "rtol": 1e-5}
    assert gradgradcheck(call, (P, Q, weights), **options)


def exact_loss(P, G):
    """⟨G, (R, t, s)⟩ in mpmath, as a function of the entries of P, Q and the weights, one after the other."""
    m, d = P.shape

    def value(entries):
        X, Y = (as_matrix(entries[k * m * d : (k + 1) * m * d], P) for k in range(2))
        weights = entries[2 * m * d :]
        mean_x, mean_y = (
            [sum(w * A[i, j] for i, w in enumerate(weights)) / sum(weights) for j in range(d)] for A in (X, Y)
        )
        K, spread = mpmath.zeros(d, d), mpmath.mpf(0)
        for i, w in enumerate(weights):
            for j in range(d):
                spread += w * (X[i, j] - mean_x[j]) ** 2
                for k in range(d):
                    K[j, k] += w * (Y[i, j] - mean_y[j]) * (X[i, k] - mean_x[k])
        R = polar_factor(K, special=True)
        scale = sum((R.T * K)[j, j] for j in range(d)) / spread
        t = mpmath.matrix(mean_y) - scale * R * mpmath.matrix(mean_x)
        return inner(G[0], R) + inner(G[1].unsqueeze(-1), t) + scale * mpmath.mpf(G[2].item())

    return value


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-5), (F64, 1e-10)], ids=str)
@every_cloud
def test_the_gradient_is_that_of_mpmath(name, dtype, tolerance):
    P, Q = (X.to(dtype) for X in CLOUDS[name])
    m = P.shape[0]
    weights = torch.linspace(0.5, 1.5, m).to(dtype) if name != "octahedron" else torch.ones(m, dtype=dtype)
    G = [random_like(x) for x in eg.kabsch(P, Q)]
    arguments = [X.clone().requires_grad_() for X in (P, Q, weights)]
    found = torch.autograd.grad(eg.kabsch(*arguments, scale=True), arguments, G)
    entries = torch.cat([X.detach().flatten() for X in arguments])
    # All arguments together: where the points match exactly, the gradient of the weights is zero.
    got = torch.cat([g.flatten() for g in found])
    assert relative_error(got, exact_gradient(exact_loss(P, G), entries)) < tolerance


def test_the_gradient_of_the_scale_does_not_suffer_from_a_rotation_that_is_nearly_undetermined():
    # The rotation about a needle of width 1e-5 is known to eps · 1e10 only, but that moves its points by 1e-11.
    thin = torch.tensor([1.0, 1e-5, 1e-5], dtype=F64)
    P = (randn(6, 3) * thin @ rotation(3)).requires_grad_()
    Q = 2 * P.detach() @ rotation(3, seed=1)
    Q = Q if torch.linalg.det(P.detach().mT @ Q) > 0 else -Q
    (got,) = torch.autograd.grad(eg.kabsch(P, Q, scale=True).scale, P)
    G = (torch.zeros(3, 3, dtype=F64), torch.zeros(3, dtype=F64), torch.ones((), dtype=F64))
    entries = torch.cat([P.detach().flatten(), Q.flatten(), torch.ones(6, dtype=F64)])
    assert relative_error(got.flatten(), exact_gradient(exact_loss(P, G), entries)[:18]) < 1e-11


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("unit", [1e-30, 1e-15, 1e15, 1e30])
def test_the_unit_of_length_does_not_matter(unit, dtype):
    P, Q = (X.to(dtype) for X in cloud())
    G = randn(3, 3, dtype=dtype)
    tolerance = 256 * torch.finfo(dtype).eps

    def results(unit_p, unit_q):
        X, Y = (P * unit_p).requires_grad_(), (Q * unit_q).requires_grad_()
        found = eg.kabsch(X, Y, scale=True)
        gradients = torch.autograd.grad(found.rotation, (X, Y), G)
        return found, [g.double() * u for g, u in zip(gradients, (unit_p, unit_q), strict=True)]

    expected, expected_gradients = results(1.0, 1.0)
    for unit_p, unit_q in ((unit, unit), (1.0, unit), (unit, 1.0)):
        found, gradients = results(unit_p, unit_q)
        assert relative_error(found.rotation, expected.rotation) < tolerance
        assert relative_error(found.translation.double() / unit_q, expected.translation) < tolerance
        assert relative_error(found.scale.double() / (unit_q / unit_p), expected.scale) < tolerance
        for got, want in zip(gradients, expected_gradients, strict=True):
            assert relative_error(got, want) < tolerance


# -------------------------------------------------------------------------------------------------- degenerate clouds


LINE = torch.linspace(-1, 2, 50, dtype=F64).unsqueeze(-1)
DEGENERATE = {
    "one point": (randn(1, 3), randn(1, 3, seed=1)),
    "one place": (torch.tensor([0.1, 0.2, 0.3], dtype=F64).expand(7, 3), randn(7, 3)),
    "to one place": (randn(7, 3), torch.tensor([0.1, 0.2, 0.3], dtype=F64).expand(7, 3)),
    "at the origin": (torch.zeros(7, 3, dtype=F64), randn(7, 3)),
    "in a line": (LINE * randn(3), LINE * randn(3, seed=1)),
    "in a line, far away": (LINE * randn(3) + 100, LINE * randn(3, seed=1) - 70),
    "reflected octahedron": (OCTAHEDRON, OCTAHEDRON * REFLECTION),
    "10 000 in a line": (randn(10_000, 1) * randn(3), randn(10_000, 1) * randn(3, seed=1)),
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", DEGENERATE)
def test_what_is_not_determined_is_some_rotation_with_a_bounded_gradient(name, dtype):
    P, Q = (X.to(dtype).clone().requires_grad_() for X in DEGENERATE[name])
    weights = torch.ones(P.shape[0], dtype=dtype, requires_grad=True)
    transform = eg.kabsch(P, Q, weights, scale=True)
    assert torch.linalg.det(transform.rotation).item() == pytest.approx(1.0, abs=1e-5)
    G = [random_like(x) for x in transform]
    first = torch.autograd.grad(transform, (P, Q, weights), G, create_graph=True)
    again = torch.autograd.grad(first, (P, Q, weights), [torch.ones_like(g) for g in first])
    # Of order one, times the distance from the origin for the translation: nothing may be 1/round-off.
    assert all(x.abs().max() < 3e4 for x in (*first, *again))


@pytest.mark.parametrize("name", ["one point", "one place", "at the origin"])
def test_the_scale_of_one_place_is_one(name):
    P, Q = (X.clone() for X in DEGENERATE[name])
    R, t, s = eg.kabsch(P.requires_grad_(), Q, scale=True)
    assert s.item() == 1.0
    torch.testing.assert_close(moved(P[:1], R, t, s)[0], Q.mean(-2))
    assert torch.equal(torch.autograd.grad(s, P)[0], torch.zeros_like(P))


@pytest.mark.parametrize("neighbour", [1e20, 1e-20, 0.0], ids=str)
def test_points_do_not_notice_their_neighbours(neighbour):
    P, Q = cloud()
    pair = torch.stack([neighbour * randn(6, 3, seed=5), P]).requires_grad_()
    alone = P.clone().requires_grad_()
    G = randn(3, 3)
    (got,) = torch.autograd.grad(eg.kabsch(pair, Q).rotation, pair, torch.stack([G, G]))
    (expected,) = torch.autograd.grad(eg.kabsch(alone, Q).rotation, alone, G)
    assert relative_error(got[1], expected) < 1e-14


# -------------------------------------------------------------------------------------------------------- transforms


def loss(P, Q, weights):
    R, t, s = eg.kabsch(P, Q, weights, scale=True)
    return (R * torch.arange(9.0, dtype=R.dtype).view(3, 3)).sum() + t.sum() + s


def test_vmap_grad_jvp_and_compile_agree_with_eager():
    torch._dynamo.reset()
    P, Q, weights = randn(4, 6, 3), randn(4, 6, 3, seed=1), torch.rand(6, dtype=F64)
    expected = eg.kabsch(P, Q, weights, scale=True)

    def similarity(P, Q, weights):
        return tuple(eg.kabsch(P, Q, weights, scale=True))

    compiled = torch.compile(similarity, fullgraph=True, backend="aot_eager")
    for call in (torch.func.vmap(similarity, in_dims=(0, 0, None)), compiled):
        for got, want in zip(call(P, Q, weights), expected, strict=True):
            torch.testing.assert_close(got, want)
    X = P.clone().requires_grad_()
    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(0, 0, None))(P, Q, weights)
    each = torch.stack([torch.func.grad(loss)(p, q, weights) for p, q in zip(P, Q, strict=True)])
    torch.testing.assert_close(mapped, each)
    R, t, s = compiled(X, Q, weights)
    total = (R * torch.arange(9.0, dtype=F64).view(3, 3)).sum() + t.sum() + s.sum()
    torch.testing.assert_close(torch.autograd.grad(total, X)[0], each)
    E = randn(6, 3, seed=3)
    _, derivative = torch.func.jvp(lambda p: loss(p, Q[0], weights), (P[0],), (E,))
    assert derivative.item() == pytest.approx((each[0] * E).sum().item(), rel=1e-11)


def test_the_hessian_by_torch_func_is_that_of_autograd_at_an_octahedron():
    weights = torch.ones(6, dtype=F64)

    def of_points(P):
        return loss(P, OCTAHEDRON, weights)

    expected = torch.autograd.functional.hessian(of_points, OCTAHEDRON)
    torch.testing.assert_close(torch.func.hessian(of_points)(OCTAHEDRON), expected)


def test_autocast_changes_neither_value_nor_gradient():
    arguments = [X.float().requires_grad_() for X in (*cloud(), torch.rand(6))]

    def results():
        value = loss(*arguments)
        return value, *torch.autograd.grad(value, arguments)

    expected = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for got, want in zip(results(), expected, strict=True):
            assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_cast_back(dtype):
    narrow = [X.to(dtype).requires_grad_() for X in (*cloud(), torch.rand(6))]
    wide = [X.detach().float().requires_grad_() for X in narrow]
    same = {"rtol": torch.finfo(dtype).eps, "atol": 1e-6, "check_dtype": False}
    found, expected = (eg.kabsch(*arguments, scale=True) for arguments in (narrow, wide))
    G = [random_like(x) for x in found]
    gradients = torch.autograd.grad(found, narrow, G)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, **same)
    for got, want in zip(gradients, torch.autograd.grad(expected, wide, [g.float() for g in G]), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, **same)


# ------------------------------------------------------------------------------------------------------------ training


def train(parameter, predict, R, steps=100):
    """The error of a predicted rotation after some steps of gradient descent."""
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * (predict(parameter) - R) ** 2).sum().backward()
        optimizer.step()
    return (predict(parameter) - R).abs().max().item()


def test_a_pose_layer_that_starts_at_the_identity_learns_a_rotation():
    # All singular values are tied at the start: through torch's svd the first gradient is NaN.
    M, points = torch.nn.Parameter(torch.eye(3, dtype=F64)), torch.eye(3, dtype=F64)
    assert train(M, lambda M: eg.polar(M, special=True).U, proper(3)) < 1e-6
    M = torch.nn.Parameter(torch.eye(3, dtype=F64))
    assert train(M, lambda M: eg.procrustes(points, M, special=True), proper(3, 1)) < 1e-6


def test_keypoints_that_start_as_an_octahedron_learn_a_rotation():
    Q = torch.nn.Parameter(OCTAHEDRON.clone())
    assert train(Q, lambda Q: eg.kabsch(OCTAHEDRON, Q).rotation, proper(3)) < 1e-6


def test_weights_learn_which_points_are_wrong():
    P, R = randn(12, 3), proper(3)
    Q = moved(P, R)
    Q[:4] = randn(4, 3, seed=9)
    logits = torch.nn.Parameter(torch.zeros(12, dtype=F64))
    optimizer = torch.optim.Adam([logits], lr=0.2)
    for _ in range(200):
        optimizer.zero_grad()
        ((eg.kabsch(P, Q, logits.exp()).rotation - R) ** 2).sum().backward()
        optimizer.step()
    assert (eg.kabsch(P, Q, logits.exp()).rotation - R).abs().max() < 1e-2


# -------------------------------------------------------------------------------------------------------------- errors

POINTS = torch.ones(5, 3)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([1.0], POINTS), TypeError, "P must be a torch.Tensor; got list"),
        ((POINTS, [1.0]), TypeError, "Q must be a torch.Tensor; got list"),
        ((torch.ones(3), POINTS), ValueError, r"P must have shape.*got \(3,\)"),
        ((POINTS, torch.ones(4, 3)), ValueError, r"P and Q must have the same.*\(5, 3\) and \(4, 3\)"),
        ((POINTS, torch.ones(5, 2)), ValueError, r"P and Q must have the same.*\(5, 3\) and \(5, 2\)"),
        ((POINTS, POINTS.double()), TypeError, "P and Q must have the same type.*float32.*float64"),
        ((POINTS.int(), POINTS), TypeError, "P must be.*torch.int32"),
        ((POINTS * 1j, POINTS * 1j), TypeError, "P must be of a real type; got torch.complex64"),
        ((torch.ones(0, 3), torch.ones(0, 3)), ValueError, r"at least one point.*got \(0, 3\)"),
        ((torch.ones(5, 0), torch.ones(5, 0)), ValueError, r"at least one dimension.*got \(5, 0\)"),
        ((torch.ones(2, 5, 3), torch.ones(3, 5, 3)), ValueError, r"P and Q must broadcast; got \(2, 5, 3\)"),
        ((POINTS, POINTS, [1.0]), TypeError, "weights must be a torch.Tensor; got list"),
        ((POINTS, POINTS, torch.ones(4)), ValueError, r"weights must have shape.*m = 5.*got \(4,\)"),
        ((POINTS, POINTS, torch.ones(())), ValueError, r"weights must have shape.*got \(\)"),
        ((POINTS, POINTS, torch.ones(5).double()), TypeError, "weights must have the type of P.*float64"),
        ((torch.ones(2, 5, 3), POINTS, torch.ones(3, 5)), ValueError, r"P, Q and weights must broadcast"),
        ((POINTS, POINTS, torch.tensor([1, 1, -2.0, 1, 1])), ValueError, r"non-negative; got -2.0 at index \(2,\)"),
        ((POINTS, POINTS, torch.zeros(5)), ValueError, "positive sum; all 5 are zero"),
        ((POINTS, POINTS, torch.eye(3)[:, [0, 0, 0, 0, 1]]), ValueError, "all 5 of batch element 2 are zero"),
    ],
    ids=str,
)
def test_misuse_is_named(arguments, kind, message):
    with pytest.raises(kind, match=f"^kabsch: .*{message}"):
        eg.kabsch(*arguments)


@pytest.mark.parametrize("argument", ["P", "Q", "weights"])
def test_what_is_not_finite_is_named(argument):
    arguments = {"P": POINTS.clone(), "Q": POINTS.clone(), "weights": torch.ones(5)}
    arguments[argument][1] = torch.nan
    with pytest.raises(eg.NonFiniteError, match=f"kabsch: .*{argument}"):
        eg.kabsch(**arguments)
