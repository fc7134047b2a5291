"""The compiled kernels in processes of their own: other CPUs, caches in every condition."""

import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import eigengrad as eg
from eigengrad.testing import hard_matrices

numba = pytest.importorskip("numba")
from eigengrad.kernels.runtime import compile  # noqa: E402, A004 - after numba is known to be there

NOTE = "compiling kernels for this CPU"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="changes owners and modes of files")
#: What makes glibc look at the memory behind each block when it is freed.
MALLOC_DEBUG = next((path for path in Path("/lib").glob("*-linux-gnu/libc_malloc_debug.so.0")), Path())


def run(script, *, cache=None, check=True, **environment):
    """The script in a new process; what it printed."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    if cache is not None:
        variables["NUMBA_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-c", "import torch\ntorch.set_num_threads(1)\n" + textwrap.dedent(script)]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=900)
    assert not check or result.returncode == 0, result.stderr
    return result


# Narrower CPUs ------------------------------------------------------------------------------------------------------

#: What numba is told about the CPU, and the bytes of a vector that this must lead to.
CPUS = {
    "haswell": (32, {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse2,+sse4.2,+avx,+avx2,+fma"}),
    "sse2": (16, {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"}),
    "generic": (16, {"NUMBA_CPU_NAME": "generic"}),
}
x86 = pytest.mark.skipif(not hasattr(os, "uname") or os.uname().machine != "x86_64", reason="names CPUs of this family")


def accuracy_on(cpu, cache, cases):
    """Decompose hard matrices on a lesser CPU, by (kernel, type, sizes); accuracy, neighbours and NaN are checked."""
    width, environment = CPUS[cpu]
    result = run(
        f"""
        import eigengrad as eg
        from eigengrad.kernels.dispatch import load
        from eigengrad.kernels.simd import vectors
        from eigengrad.testing import decomposition_errors, hard_matrices

        assert (vectors.BYTES, vectors.AVX512) == ({width}, False), vectors.BYTES
        for kernel, name, sizes in {cases!r}:
            dtype = getattr(torch, name)
            solve = load("eigensolvers." + kernel.removesuffix("_half"), kernel, dtype)
            for n in sizes:
                A = torch.stack(list(hard_matrices(n, dtype, torch.Generator().manual_seed(n)).values()))
                A = torch.cat([A, A[:3]])
                L, V = torch.empty(A.shape[:-1], dtype=dtype), torch.empty_like(A)
                def run(A, L, V):
                    return solve.launch((A.data_ptr(), L.data_ptr(), V.data_ptr(), len(A), n), len(A), 16, 0.0)

                assert run(A, L, V) == 0
                ours = [error.max() for error in decomposition_errors(A, L, V.mT)]
                lapack = [error.max() for error in decomposition_errors(A, *torch.linalg.eigh(A))]
                assert all(x <= 2 * y for x, y in zip(ours, lapack)), (kernel, name, n, ours, lapack)
                assert (L.diff(dim=-1) >= 0).all()
                all_L, all_V = L.clone(), V.clone()
                L[-3:], V[-3:] = 0, 0
                assert run(A[-3:], L[-3:], V[-3:]) == 0
                assert torch.equal(L, all_L) and torch.equal(V, all_V)
                A[1, n - 1, 0] = torch.nan
                assert run(A, L, V) == 1
                assert (torch.ones(4) * 1e-40 * 0.5 > 0).all()
        print("done")
        """,
        cache=cache,
        **environment,
    )
    assert result.stdout == "done\n"


@x86
def test_vectors_of_eight_floats(tmp_path):
    accuracy_on("haswell", tmp_path, [("jacobi", "float32", [1, 3, 4])])


@x86
@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_every_kernel_on_narrower_vectors(cpu, name, tmp_path):
    accuracy_on(
        cpu,
        tmp_path,
        [
            ("jacobi", name, [1, 2, 3, 4]),
            ("batched_ql", name, [2, 8, 15, 24, 33]),
            ("batched_ql_half", name, [2, 8, 24]),
            ("divide_and_conquer", name, [17, 33, 64, 70]),
        ],
    )


# The cache ----------------------------------------------------------------------------------------------------------

#: A small kernel in two types: the large ones are kept the same way.
SMALL = """
    from eigengrad.kernels.dispatch import load
    for dtype in (torch.float32, torch.float64):
        x, centre = torch.full((3, 2), 5, dtype=dtype), torch.zeros(2, dtype=torch.float64)
        load("feature_maps.whitening", "pivots", dtype)(x.data_ptr(), 3, 2, 1, 1, centre.data_ptr())
        assert centre.tolist() == [5, 5]
"""


def files(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that one process has filled, and what that process said."""
    folder = tmp_path_factory.mktemp("filled")
    return folder, run(SMALL, cache=folder).stderr


@pytest.fixture
def cache(filled, tmp_path):
    """A copy of that cache."""
    return shutil.copytree(filled[0], tmp_path / "cache")


def test_the_first_process_says_that_it_compiles_and_later_ones_do_not(filled):
    folder, said = filled
    assert said.count(NOTE) == 1
    assert len(files(folder)) == 4  # an index and the code, in each type
    before = {path: path.stat().st_mtime_ns for path in files(folder)}
    assert NOTE not in run(SMALL, cache=folder).stderr
    assert {path: path.stat().st_mtime_ns for path in files(folder)} == before


@pytest.mark.parametrize("damage", ["half", *(pytest.param(x, marks=pytest.mark.slow) for x in (b"", b"\x80", b"?"))])
def test_damaged_files_are_no_error(cache, damage):
    for path in files(cache):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage == "half" else damage)
    run(SMALL, cache=cache)
    assert NOTE not in run(SMALL, cache=cache).stderr


@pytest.mark.slow
def test_processes_may_compile_at_the_same_time(tmp_path):
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "import torch\n" + textwrap.dedent(SMALL)]
    started = [subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(300) for process in started] == [0, 0, 0]
    assert NOTE not in run(SMALL, cache=tmp_path).stderr


@linux
def test_a_full_disk_is_no_error(tmp_path):
    script = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # fails as a full disk does
    """
    assert NOTE in run(textwrap.dedent(script) + textwrap.dedent(SMALL), cache=tmp_path).stderr
    assert all(path.stat().st_size <= 100 for path in files(tmp_path))


class Planted:
    """Says when it is unpickled that somebody else's file was executed."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@linux
@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["the kernels", pytest.param("eigengrad", marks=pytest.mark.slow), "above"])
@pytest.mark.parametrize("fault", ["mode", "owner"])
def test_a_folder_that_somebody_else_can_write_to_is_not_used(cache, tmp_path, place, fault):
    (folder,) = cache.glob("eigengrad/kernels-*")
    mark = tmp_path / "executed"
    for path in files(cache):
        path.write_bytes(pickle.dumps(Planted(mark)))
    shared = {"the kernels": folder, "eigengrad": folder.parent, "above": cache}[place]
    if fault == "mode":
        shared.chmod(0o777)
    elif os.getuid() == 0:
        os.chown(shared, 65534, 65534)
    else:
        pytest.skip("only root gives files away")
    result = run(SMALL, cache=cache)
    assert not mark.exists()
    assert f"others can write to {shared}" in result.stderr
    assert NOTE in result.stderr


@linux
def test_a_planted_file_would_be_executed_in_a_folder_of_our_own(cache, tmp_path):
    """What the test before this one relies on."""
    for path in files(cache):
        path.write_bytes(pickle.dumps(Planted(tmp_path / "executed")))
    run(SMALL, cache=cache)
    assert (tmp_path / "executed").exists()


@linux
@pytest.mark.slow
def test_a_link_in_place_of_the_folder_is_followed_only_to_a_folder_of_our_own(cache, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (cache / "eigengrad").rename(elsewhere)
    (cache / "eigengrad").symlink_to(elsewhere)
    assert NOTE not in run(SMALL, cache=cache).stderr
    elsewhere.chmod(0o777)
    assert "others can write to" in run(SMALL, cache=cache).stderr


@pytest.mark.slow
def test_the_folder_of_a_single_process_goes_with_it(tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert "for this process only" in run(SMALL, cache=tmp_path / "file", TMPDIR=str(tmp_path)).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@linux
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root chooses its group")
@pytest.mark.parametrize("place", [pytest.param("eigengrad", marks=pytest.mark.slow), "above"])
def test_a_folder_that_a_shared_group_can_write_to_is_not_used(cache, tmp_path, place):
    """Where all users are in one group, one's own group is no protection."""
    mark = tmp_path / "executed"
    for path in files(cache):
        path.write_bytes(pickle.dumps(Planted(mark)))
    shared = {"eigengrad": cache / "eigengrad", "above": cache}[place]
    os.chown(shared, 0, 100)
    shared.chmod(0o775)
    result = run("import os; os.setegid(100)\n" + textwrap.dedent(SMALL), cache=cache)
    assert not mark.exists()
    assert f"others can write to {shared}" in result.stderr


@linux
def test_a_temporary_folder_is_removed_by_its_own_process_and_not_trusted_when_made_anew(tmp_path):
    (tmp_path / "file").write_text("no folder")
    script = """
        import os, shutil, sys
        from eigengrad.kernels.runtime import cache
        place = cache.location()
        child = os.fork()
        if child == 0:
            sys.exit()  # with all that is to be done at the end of a process
        assert os.waitpid(child, 0)[1] == 0
        assert place.is_dir()
        shutil.rmtree(place)  # as those do who clean /tmp, and then somebody else makes it again
        place.mkdir()
        place.chmod(0o777)
    """
    result = run(textwrap.dedent(script) + textwrap.dedent(SMALL), cache=tmp_path / "file", TMPDIR=str(tmp_path))
    assert f"others can write to {tmp_path}/eigengrad-" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_any_folder_that_can_be_written_kernels_are_compiled(tmp_path):
    (tmp_path / "file").write_text("no folder")
    script = """
        import tempfile
        def fail(*arguments, **options):
            raise FileNotFoundError("No usable temporary directory found")
        tempfile.mkdtemp = fail
    """
    result = run(textwrap.dedent(script) + textwrap.dedent(SMALL), cache=tmp_path / "file")
    assert "the kernel cache cannot be used (FileNotFoundError: No usable" in result.stderr


def does_not_compile(number: "Any", count: "int", work: "int") -> int:
    return number.there_is_no_such_thing + count


def cannot_be_kept(number: "Any", count: "int", work: "int") -> int:
    return 1


def test_a_kernel_that_does_not_compile_is_tried_once_and_the_cache_is_not_blamed(monkeypatch, caplog):
    tried = []
    monkeypatch.setattr(
        compile, "cfunc", lambda *arguments, **options: tried.append(1) or numba.cfunc(*arguments, **options)
    )
    with pytest.raises(numba.NumbaError, match="there_is_no_such_thing"):
        compile.Kernel(does_not_compile).launcher("float32")
    assert len(tried) == 1
    assert "cache" not in caplog.text


def test_a_cache_that_fails_costs_one_more_try_and_one_line(monkeypatch, caplog):
    def cfunc(signature, cache=False, **options):
        if cache:
            raise EOFError("Ran out of input")
        return numba.cfunc(signature, **options)

    monkeypatch.setattr(compile, "cfunc", cfunc)
    compile.Kernel(cannot_be_kept).launcher("float32")(3)
    assert caplog.text.count("the kernel cache cannot be used (EOFError: Ran out of input)") == 1


def test_kernels_of_other_versions_are_removed_after_a_month(cache):
    (folder,) = cache.glob("eigengrad/kernels-*")
    old, recent = folder.with_name("kernels-old"), folder.with_name("kernels-recent")
    for other in (old, recent):
        other.mkdir()
        (other / "code").write_text("")
    os.utime(old, (0, 0))
    run(SMALL, cache=cache)
    assert [path.name for path in sorted(folder.parent.iterdir())] == sorted([folder.name, "kernels-recent"])


def install(folder):
    """A copy of the package that nobody may write to."""
    package = Path(eg.__file__).parent
    for source in package.rglob("*.py"):
        if "lab" not in source.relative_to(package).parts:
            target = folder / "eigengrad" / source.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555)


#: Root may write anywhere: so the script gives that up, after importing what root alone may be able to read.
ORDINARY = """
    import os, sys
    import numba, numpy
    numba.njit(lambda x: x)(1)
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    assert not os.access({folder!r}, os.W_OK)
    sys.path.insert(0, {folder!r})
    import eigengrad
    assert eigengrad.__file__.startswith({folder!r}), eigengrad.__file__
"""


@linux
@pytest.mark.parametrize("writable", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_installation_that_nobody_may_write_to(tmp_path, writable):
    """Its code is kept in the user's cache; where that cannot be written to either, it is compiled every time."""
    for folder in (tmp_path, *tmp_path.parents):  # pytest keeps its folders to their owner
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o005:
            folder.chmod(folder.stat().st_mode | 0o005)
    packages, cache = tmp_path / "site-packages", tmp_path / "cache"
    install(packages)
    cache.mkdir()
    if writable and os.getuid() == 0:
        os.chown(cache, 65534, 65534)
    cache.chmod(0o755 if writable else 0o555)
    script = textwrap.dedent(ORDINARY.format(folder=str(packages))) + textwrap.dedent(SMALL)
    environment = {"XDG_CACHE_HOME": str(cache), "HOME": str(cache), "NUMBA_CACHE_DIR": ""}
    assert NOTE in run(script, **environment).stderr
    assert len(files(cache)) == (4 if writable else 0)
    if writable:
        assert NOTE not in run(script, **environment).stderr


@linux
@pytest.mark.slow
def test_a_change_in_any_file_of_the_kernels_makes_new_ones(tmp_path):
    """numba itself looks at the kernel's own file only, although what it calls is compiled into it."""
    packages, cache = tmp_path / "site-packages", tmp_path / "cache"
    install(packages)
    assert NOTE in run(SMALL, cache=cache, PYTHONPATH=str(packages)).stderr
    assert NOTE not in run(SMALL, cache=cache, PYTHONPATH=str(packages)).stderr
    source = packages / "eigengrad" / "kernels" / "simd" / "vectors.py"
    source.chmod(0o644)
    source.write_text(source.read_text() + "\n")
    assert NOTE in run(SMALL, cache=cache, PYTHONPATH=str(packages)).stderr


def test_numba_and_the_layers_are_not_imported_before_they_are_needed():
    script = """
        import sys
        import eigengrad as eg
        assert "eigengrad.nn" not in sys.modules
        assert eg.nn.DecorrelatedBatchNorm2d.__name__ in eg.nn.__all__
        assert not hasattr(eg, "layers")
        assert "numba" not in sys.modules
        assert "eigengrad.kernels.simd.vectors" not in sys.modules
    """
    run(script)


# While the compiler is at work --------------------------------------------------------------------------------------


def test_other_threads_decompose_while_one_compiles():
    """torch.compiler.is_compiling holds in all threads while one compiles; the operator must not call itself."""
    A = torch.stack(list(hard_matrices(5, torch.float32, torch.Generator().manual_seed(0)).values()))
    expected = eg.eigh(A)
    bad = A.clone()
    bad[7, 3, 1] = torch.inf
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        L, V = torch.ops.eigengrad.eigh(A, "L")
        with pytest.raises(eg.NonFiniteError, match="batch element 7 "):
            torch.ops.eigengrad.eigh(bad, "L")
        result = eg.eigh(A)
    finally:
        torch.compiler._is_compiling_flag = before
    assert torch.equal(L, expected.eigenvalues)
    assert torch.equal(V, expected.eigenvectors)
    assert torch.equal(result.eigenvectors, V)


@pytest.mark.skipif(not MALLOC_DEBUG.is_file(), reason="needs glibc, which checks the memory behind each block")
def test_scratch_memory_is_large_enough_for_groups_of_any_size():
    """Groups that are no whole vectors, in maps whose channels are fast: what fills up a vector needs room as well."""
    script = """
        import eigengrad.nn as en
        for dtype in (torch.float32, torch.float64):
            for d in (1, 3, 5, 7, 10, 13, 20, 26, 33, 50, 100):
                for channels in (d, 2 * d, 5 * d):
                    layer = en.DecorrelatedBatchNorm1d(channels, group_size=d, dtype=dtype)
                    for points in (1, 40):
                        x = torch.randn(2 * d, channels, points, dtype=dtype, requires_grad=True)
                        layer(x).sum().backward()
                    x, s = (torch.randn(1, channels, 7, 5, dtype=dtype).to(memory_format=torch.channels_last)
                            for _ in range(2))
                    x.requires_grad_(), s.requires_grad_()
                    en.functional.whiten_color(x, s, groups=channels // d, per_sample=False).sum().backward()
        print("intact")
    """
    variables = {"LD_PRELOAD": str(MALLOC_DEBUG), "GLIBC_TUNABLES": "glibc.malloc.check=3"}
    assert run(script, **variables).stdout == "intact\n"
