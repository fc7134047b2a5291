"""The batched eigensolvers: as accurate as LAPACK, and nothing but the matrix itself decides about its result."""

import gc
import os
import sys

import pytest
import torch

import eigengrad as eg
import kernel_eigh
from eigengrad.kernels import costs, dispatch, eigensolvers
from eigengrad.kernels.dispatch import vector_bytes
from eigengrad.testing import MATRICES, SPECTRA, decomposition_errors, hard_matrices, random_hermitian

pytest.importorskip("numba")

REAL = [torch.float32, torch.float64]
KERNELS = {
    "jacobi": range(1, 5),
    "batched_ql": range(2, 65),
    "batched_ql_half": range(2, 65),
    "divide_and_conquer": range(2, 513),
}  # and the sizes each is made for
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
#: (batch, n): one or two for each kernel, whole vectors and tails.
SHAPES = [(40, 3), (21, 4), (40, 5), (3, 7), (19, 16), (4, 16), (33, 24), (2, 33), (2, 70)]

dtypes = pytest.mark.parametrize("dtype", REAL, ids=str)
shapes = pytest.mark.parametrize(("batch", "n"), SHAPES, ids=str)


def load(kernel, dtype):
    return dispatch.load(f"eigensolvers.{kernel.removesuffix('_half')}", kernel, dtype)


def by(kernel, A, first=0, last=None):
    """Decompose a batch by the kernel of that name; its status as well, 0 for success."""
    A, n = A.contiguous(), A.shape[-1]
    L, V = torch.full(A.shape[:-1], -7.0, dtype=A.dtype), torch.full_like(A, -7.0)
    part = slice(first, len(A) if last is None else last)
    places = [tensor[part].data_ptr() for tensor in (A, L, V)]
    count = part.stop - first
    status = load(kernel, A.dtype).launch((*places, count, n), count, 16, 0.0)
    return L, V.mT, status


def chosen(batch, n, dtype):
    """The name of the kernel that decomposes such a batch."""
    plan = eigensolvers.plan(torch.Size([batch, n, n]), dtype)
    (name,) = (name for name in KERNELS if load(name, dtype) is plan.kernel)
    return name


def same_bits(*pairs):
    return all(
        torch.equal(x.contiguous().view(INTEGERS[x.dtype]), y.contiguous().view(INTEGERS[y.dtype])) for x, y in pairs
    )


def suite(n, dtype, seed=0, every=1):
    matrices = hard_matrices(n, dtype, torch.Generator().manual_seed(seed))
    return torch.stack(list(matrices.values())[::every])


def assert_as_good_as_lapack(A, L, V):
    residual, defect = decomposition_errors(A, L, V)
    expected, Q = torch.linalg.eigh(A)
    lapack_residual, lapack_defect = decomposition_errors(A, expected, Q)
    assert residual.max() <= 2 * lapack_residual.max()
    assert defect.max() <= 2 * lapack_defect.max()
    assert (L.diff(dim=-1) >= 0).all()
    # Hoffman and Wielandt: eigenvalues differ by no more than the matrices they are exact for.
    scale = A.abs().amax((-2, -1)).double().clamp(min=torch.finfo(torch.float64).tiny)
    difference = torch.linalg.vector_norm((L.double() - expected.double()) / scale.unsqueeze(-1), dim=-1)
    size = torch.linalg.matrix_norm(A.double() / scale[:, None, None])
    assert (difference <= 1.01 * (residual + lapack_residual) * size).all()


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


# Accuracy -----------------------------------------------------------------------------------------------------------


@dtypes
def test_shapes_here_reach_every_kernel(dtype):
    unused = set() if vector_bytes() == 64 else {"batched_ql_half"}
    assert {chosen(batch, n, dtype) for batch, n in SHAPES} == set(KERNELS) - unused


@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 15, 16, 17, 24, 33, 40, 64, 65, 100])
def test_residual_and_orthogonality_are_at_most_twice_those_of_lapack(n, dtype):
    A = suite(n, dtype, seed=n)
    assert_as_good_as_lapack(A, *kernel_eigh.eigh(A, "L"))
    if chosen(1, n, dtype) != chosen(len(A), n, dtype):
        alone = [kernel_eigh.eigh(M, "L") for M in A]
        assert_as_good_as_lapack(A, torch.stack([L for L, _ in alone]), torch.stack([V for _, V in alone]))


@dtypes
@pytest.mark.parametrize(
    ("n", "every"),
    [(130, 8), (257, 16), (512, 69)]
    + [pytest.param(n, 4, marks=pytest.mark.slow) for n in (129, 200, 255, 256, 384, 511, 512)],
)
def test_large_matrices_are_as_accurate_too(n, every, dtype):
    A = suite(n, dtype, seed=n, every=every)
    assert_as_good_as_lapack(A, *kernel_eigh.eigh(A, "L"))


@dtypes
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_size_has_its_tail(kernel, dtype):
    """A vector too few or too many shows as an error of order one."""
    for n in KERNELS[kernel][:70]:
        generator = torch.Generator().manual_seed(n)
        for batch in (1, 2) if kernel == "divide_and_conquer" else (1, 17):
            A = torch.stack([MATRICES["gaussian"](n, generator) for _ in range(batch)]).to(dtype)
            L, V, status = by(kernel, A)
            residual, defect = decomposition_errors(A, L, V)
            assert status == 0
            assert residual.max() <= 20 * torch.finfo(dtype).eps
            assert defect.max() <= 3 * (n + 1) * torch.finfo(dtype).eps


@dtypes
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16, 17, 31, 40, 64])
def test_kernels_agree_to_round_off(n, dtype):
    A, eps = suite(n, dtype, seed=1), torch.finfo(dtype).eps
    generator = torch.Generator().manual_seed(n)
    B = torch.stack([random_hermitian(SPECTRA["separated"]((n,), generator), generator, dtype) for _ in range(20)])
    able = [kernel for kernel, sizes in KERNELS.items() if n in sizes]
    results, separated = ([by(kernel, X) for kernel in able] for X in (A, B))
    size = torch.linalg.matrix_norm(A.double())
    for L, _, status in results:
        assert status == 0
        difference = torch.linalg.vector_norm(L.double() - results[0][0].double(), dim=-1)
        assert (difference <= 4 * n * eps * size).all()
    for _, V, _ in separated:
        overlap = (V.double().mT @ separated[0][1].double()).abs()
        assert (overlap - torch.eye(n)).abs().max() <= 20 * n**1.5 * eps  # gaps are 1/(2n) or more


def adjacency(n, edges):
    A = torch.zeros(n, n)
    for i, j, weight in edges:
        A[i, j] = A[j, i] = weight
    return A


@dtypes
@pytest.mark.parametrize(
    "A",
    [
        pytest.param(
            adjacency(9, [(0, 1, -1), (1, 1, 1), (0, 5, -1), (0, 8, 1), (2, 4, 1), (3, 6, -1), (6, 6, 1)]),
            id="the last root of a merge lies at its bound",
        ),
        pytest.param(adjacency(32, [(i, i ^ 1, 1) for i in range(32)]), id="a perfect matching"),
        pytest.param(adjacency(40, [(i, (i + 1) % 40, 1) for i in range(40)]), id="a cycle"),
        pytest.param(adjacency(33, [(0, i, 1) for i in range(1, 33)]), id="a star"),
        pytest.param(torch.ones(31, 31), id="squares of round-off underflow"),
        pytest.param(torch.ones(63, 63) - torch.eye(63), id="a complete graph"),
    ],
)
def test_matrices_of_small_integers(A, dtype):
    """Sparse and exactly representable: roots, shifts and ties are hit to the last bit."""
    A = A.to(dtype).expand(20, -1, -1)
    n, eps = A.shape[-1], torch.finfo(dtype).eps
    for kernel, sizes in KERNELS.items():
        if n in sizes:
            L, V, status = by(kernel, A)
            residual, defect = decomposition_errors(A, L, V)
            assert status == 0
            assert residual.max() <= 20 * eps
            assert defect.max() <= 2 * n * eps


@pytest.mark.parametrize("seed", range(6))
@dtypes
def test_entries_of_all_magnitudes(seed, dtype):
    """Dense, sparse and tridiagonal, with entries from 1 down to 1e-25."""
    generator = torch.Generator().manual_seed(seed)
    for kernel in KERNELS:
        n = {"jacobi": (2, 3, 4), "divide_and_conquer": (9, 12, 33)}.get(kernel, (5, 9, 16))[seed % 3]
        shape = 400, n, n
        A = torch.randn(shape, generator=generator, dtype=torch.float64)
        A = A * 10 ** (-25 * torch.rand(shape, generator=generator, dtype=torch.float64))
        A = A * (torch.rand(shape, generator=generator) < (1 if seed < 3 else 3 / n))
        A = (A.tril() + A.tril(-1).mT).to(dtype)
        A[::2] = A[::2].tril(1).triu(-1)
        L, V, status = by(kernel, A)
        residual, defect = decomposition_errors(A, L, V)
        assert status == 0
        assert residual.max() <= 6 * n**0.5 * torch.finfo(dtype).eps
        assert defect.max() <= 4 * n * torch.finfo(dtype).eps


# Scale --------------------------------------------------------------------------------------------------------------


@dtypes
@shapes
def test_diagonal_matrices_come_out_exactly(batch, n, dtype, generator):
    values = (
        torch.randint(-3, 4, (batch, n), generator=generator) * torch.tensor([1.0, 2.0**-20, 2.0**20]).repeat(n)[:n]
    )
    values = torch.cat([values, torch.arange(n).expand(batch, n), torch.arange(n, 0, -1).expand(batch, n)])[::3].to(
        dtype
    )
    L, V = kernel_eigh.eigh(torch.diag_embed(values), "L")
    assert torch.equal(L, values.sort(-1).values)
    assert torch.equal(V.abs().sort(-2).values[:, -1], torch.ones_like(L))
    assert torch.equal(V.abs().sum(-2), torch.ones_like(L))
    assert torch.equal(V.abs().sum(-1), torch.ones_like(L))


@dtypes
@shapes
def test_zero_matrices_have_zero_eigenvalues_and_orthonormal_vectors(batch, n, dtype):
    L, V = kernel_eigh.eigh(torch.zeros(batch, n, n, dtype=dtype), "L")
    assert torch.equal(L, torch.zeros(batch, n, dtype=dtype))
    assert torch.equal(V.mT @ V, torch.eye(n, dtype=dtype).expand(batch, n, n))


@dtypes
@shapes
def test_a_power_of_two_scales_the_eigenvalues_and_nothing_else(batch, n, dtype, generator):
    A = random_hermitian(SPECTRA["indefinite"]((batch, n), generator), generator, dtype)
    A = torch.where(A.abs() < 2.0**-12, 0.0, A)  # no entry becomes denormal on the way down
    L, V = kernel_eigh.eigh(A, "L")
    for exponent in (-110, -60, -1, 1, 60, 120) if dtype == torch.float32 else (-1000, -500, -1, 1, 500, 1010):
        scaled, W = kernel_eigh.eigh(
            torch.ldexp(torch.ldexp(A, torch.tensor(exponent // 2)), torch.tensor(exponent - exponent // 2)), "L"
        )
        assert same_bits(
            (V, W),
            (scaled, torch.ldexp(torch.ldexp(L, torch.tensor(exponent // 2)), torch.tensor(exponent - exponent // 2))),
        )


@dtypes
@shapes
def test_denormal_matrices_are_decomposed_to_the_last_denormal_bit(batch, n, dtype, generator):
    limits = torch.finfo(dtype)
    step = limits.smallest_normal * limits.eps  # between denormal numbers
    for steps in (1, 3, 50, 2**10, 2**20):
        multiples = torch.randint(-steps, steps + 1, (batch, n, n), generator=generator).to(dtype)
        multiples = multiples.tril() + multiples.tril(-1).mT
        A = multiples * step
        assert (A / step == multiples).all()
        L, V = kernel_eigh.eigh(A, "L")
        expected, _ = kernel_eigh.eigh(multiples, "L")
        values = L.double() / step
        assert (values - expected.double()).abs().max() <= 1  # rounded once, or twice on the way
        # The vectors are as good as those of the multiples; where rounded values are equal, so is any order.
        error = multiples.double() @ V.double() - V.double() * values.unsqueeze(-2)
        assert error.norm(dim=-2).max() <= 1 + 20 * n * limits.eps * steps
        assert decomposition_errors(multiples, expected, V)[1].max() <= 3 * (n + 1) * limits.eps


# Numbers that are not finite ----------------------------------------------------------------------------------------


def positions(n):
    """Every entry of a small lower triangle, and the corners, borders and inside of a large one."""
    rows = range(n) if n <= 5 else sorted({0, 1, n // 2, n - 2, n - 1})
    return [(i, j) for i in rows for j in rows if j <= i]


@pytest.mark.parametrize("UPLO", ["L", "U"])
@dtypes
@shapes
def test_every_non_finite_entry_that_is_read_is_named_with_its_matrix(batch, n, dtype, UPLO, generator):
    clean = random_hermitian(SPECTRA["separated"]((batch, n), generator), generator, dtype)
    bad = [torch.nan, torch.inf, -torch.inf]
    for number, (i, j) in enumerate(positions(n)):
        A = clean.clone()
        index = (number * 7) % batch
        A[(index, i, j) if UPLO == "L" else (index, j, i)] = bad[number % 3]
        with pytest.raises(eg.NonFiniteError) as error:
            eg.eigh(A, UPLO, driver="batched")
        assert error.value.index == (index,)


@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 40, 64, 65, 130])
def test_single_matrices_with_nan_are_refused(n, dtype):
    for i, j in positions(n):
        A = torch.eye(n, dtype=dtype)
        A[i, j] = torch.nan
        with pytest.raises(eg.NonFiniteError, match="the matrix of A has 1 non-finite entry"):
            eg.eigh(A)


@dtypes
@shapes
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_entries_that_are_not_read_do_not_matter(batch, n, dtype, bad, generator):
    A = random_hermitian(SPECTRA["separated"]((batch, n), generator), generator, dtype)
    L, V = kernel_eigh.eigh(A, "L")
    garbage = torch.full_like(A, bad)
    lower = torch.where(torch.ones(n, n).tril().bool(), A, garbage)
    upper = torch.where(torch.ones(n, n).triu().bool(), A, garbage)
    for X, UPLO in ((lower, "L"), (upper, "U")):
        result = eg.eigh(X, UPLO, driver="batched")
        assert same_bits((result.eigenvalues, L), (result.eigenvectors, V))


@dtypes
@pytest.mark.parametrize(
    ("kernel", "n"),
    [("jacobi", n) for n in (1, 3, 4)]
    + [("batched_ql", n) for n in (7, 16)]
    + [("batched_ql_half", 7), ("divide_and_conquer", 20)],
)
def test_bad_matrices_become_nan_and_leave_their_neighbours_alone(kernel, n, dtype, generator):
    A = random_hermitian(SPECTRA["indefinite"]((37, n), generator), generator, dtype)
    L, V, _ = by(kernel, A)
    bad = torch.zeros(37, dtype=torch.bool)
    bad[[0, 5, 6, 20, 36]] = True
    B = A.clone()
    B[bad, n - 1, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf, torch.nan, torch.inf], dtype=dtype)
    M, W, status = by(kernel, B)
    assert status == 1
    assert same_bits((M[~bad], L[~bad]), (W[~bad], V[~bad]))
    assert M[bad].isnan().all()
    assert W[bad].isnan().all()


# Nothing but the matrix itself counts -------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize(
    ("kernel", "n"),
    [("jacobi", n) for n in (1, 2, 3, 4)]
    + [("batched_ql", n) for n in (2, 5, 8, 16, 17, 33)]
    + [("batched_ql_half", n) for n in (3, 8, 17)]
    + [("divide_and_conquer", n) for n in (17, 40)],
)
def test_neighbours_do_not_matter(kernel, n, dtype):
    """Not even for the sign of a zero: alone, and among matrices that take longer, or are of another scale."""
    A = suite(n, dtype)
    L, V, _ = by(kernel, A)
    for i in range(len(A)):
        alone = by(kernel, A[i : i + 1])
        assert same_bits((alone[0][0], L[i]), (alone[1][0], V[i]))


@dtypes
@pytest.mark.parametrize("kernel", ["batched_ql", "batched_ql_half"])
@pytest.mark.parametrize("n", [5, 12, 16, 26])
def test_where_blocks_end_does_not_matter(n, kernel, dtype):
    """Blocks of as many matrices as there are lanes are taken by twos; the last may be alone, and have empty lanes."""
    A = suite(n, dtype)
    L, V, _ = by(kernel, A)
    for count in (3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 49):
        fewer = by(kernel, A[:count])
        assert same_bits((fewer[0], L[:count]), (fewer[1], V[:count]))


@dtypes
@shapes
def test_the_place_in_the_batch_does_not_matter(batch, n, dtype):
    A = suite(n, dtype)[:batch]
    A = torch.cat([A, A])[:batch]
    L, V = kernel_eigh.eigh(A, "L")
    for shift in (1, 5, batch - 1):
        shifted = kernel_eigh.eigh(A.roll(shift, 0), "L")
        assert same_bits((shifted[0].roll(-shift, 0), L), (shifted[1].roll(-shift, 0), V))


@dtypes
@pytest.mark.parametrize(
    ("batch", "n"), [(4099, 3), (5000, 4), (1000, 8), (301, 16), (130, 40), (65, 64), (9, 100)], ids=str
)
def test_the_number_of_threads_does_not_matter(batch, n, dtype):
    while eigensolvers.plan(torch.Size([batch, n, n]), dtype).microseconds < costs.THREAD_COST:
        batch = 2 * batch + 1
    A = torch.cat([suite(n, dtype)] * (batch // 60 + 1))[:batch]
    L, V = kernel_eigh.eigh(A, "L")
    try:
        for count in (2, 3, 7):
            torch.set_num_threads(count)
            assert same_bits(*zip((L, V), kernel_eigh.eigh(A, "L"), strict=True))
    finally:
        torch.set_num_threads(1)


@dtypes
@shapes
def test_a_call_repeats_itself(batch, n, dtype):
    """Whatever the memory that it gets held before."""
    A = suite(n, dtype)[:batch]
    first = kernel_eigh.eigh(A, "L")
    for fill in (torch.nan, torch.inf, 0.0, 1e30):
        litter = [torch.full((size,), fill) for size in (2**8, 2**12, 2**16, 2**20)]
        del litter
        assert same_bits(*zip(first, kernel_eigh.eigh(A, "L"), strict=True))


@dtypes
@pytest.mark.parametrize(
    ("kernel", "n"),
    [
        ("jacobi", 3),
        ("jacobi", 4),
        ("batched_ql", 6),
        ("batched_ql", 16),
        ("batched_ql_half", 6),
        ("divide_and_conquer", 20),
    ],
)
def test_only_the_share_asked_for_is_written(kernel, n, dtype):
    A = suite(n, dtype)[:50]
    L, V, _ = by(kernel, A)
    M, W, _ = by(kernel, A, 16, 35)
    assert same_bits((M[16:35], L[16:35]), (W[16:35], V[16:35]))
    for outside in (slice(0, 16), slice(35, 50)):
        assert (M[outside] == -7).all()
        assert (W[outside] == -7).all()


@dtypes
@pytest.mark.parametrize(
    ("kernel", "n"),
    [("jacobi", n) for n in (1, 2, 3, 4)]
    + [("batched_ql", n) for n in (5, 8, 13)]
    + [("batched_ql_half", n) for n in (5, 8, 13)]
    + [("divide_and_conquer", n) for n in (5, 33)],
)
def test_nothing_beyond_the_tensors_is_touched(kernel, n, dtype):
    """Guards before and after the input and both results stay as they are, and what they hold is not used."""
    batch, guard = 19, 64
    A = suite(n, dtype)[:batch]
    L, V, _ = by(kernel, A)
    results = []
    for fill in (torch.nan, 3.0):
        rooms = [torch.full((batch * size + 2 * guard,), fill, dtype=dtype) for size in (n * n, n, n * n)]
        inner = [room[guard:-guard] for room in rooms]
        inner[0].copy_(A.reshape(-1))
        before = [room.clone() for room in rooms]
        places = [x.data_ptr() for x in inner]
        status = load(kernel, dtype).launch((*places, batch, n), batch, 16, 0.0)
        assert status == 0
        for room, old in zip(rooms, before, strict=True):
            assert same_bits((room[:guard], old[:guard]), (room[-guard:], old[-guard:]))
        assert same_bits((inner[0], A.reshape(-1)))
        results.append((inner[1].view(batch, n), inner[2].view(batch, n, n).mT))
    for result in results:
        assert same_bits(*zip(result, (L, V), strict=True))


# Denormal arithmetic ------------------------------------------------------------------------------------------------


def keeps_denormals():
    """Whether torch and Python compute with denormal numbers."""
    x = torch.full((16,), 1e-40)
    return bool((x * 0.5 > 0).all()) and bool((x.double() * 1e-280 > 0).all()) and 5e-324 * 1.0 > 0


@dtypes
@shapes
def test_denormal_arithmetic_is_as_before(batch, n, dtype):
    A = suite(n, dtype)[:batch]
    assert keeps_denormals()
    kernel_eigh.eigh(A, "L")
    assert keeps_denormals()
    A[0, n - 1, 0] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError):
        kernel_eigh.eigh(A, "L")
    assert keeps_denormals()


@dtypes
@shapes
def test_who_has_switched_denormals_off_keeps_them_off(batch, n, dtype):
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot")
    try:
        kernel_eigh.eigh(suite(n, dtype)[:batch], "L")
        assert not keeps_denormals()
    finally:
        torch.set_flush_denormal(False)
    assert keeps_denormals()


# Memory -------------------------------------------------------------------------------------------------------------


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("batch", "n", "calls"), [(64, 4, 4000), (64, 16, 1000), (1, 100, 300)], ids=str)
def test_many_calls_keep_nothing(batch, n, calls, two_threads):
    """One scratch array of each call would be ten times the bound, or more."""
    A = torch.eye(n).repeat(batch, 1, 1)
    bad = A.clone()
    bad[-1, -1, 0] = torch.nan

    def work(count):
        for _ in range(count):
            kernel_eigh.eigh(A, "L")
        for _ in range(count // 10):
            with pytest.raises(torch.linalg.LinAlgError):
                kernel_eigh.eigh(bad, "L")

    work(calls // 10)
    before = resident()
    work(calls)
    assert resident() - before < 4 << 20
