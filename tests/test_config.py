"""What ``show_config`` says, and how everything works where kernels cannot."""

import os
import platform
import subprocess
import sys
import textwrap

import pytest
import torch

import eigengrad as eg

numba = pytest.mark.skipif(not eg.kernels.available(), reason="needs the kernels")

#: Functions and layers, forward and backward, against LAPACK; and what is said on the way, by logger and level.
USE = """
    import logging
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("eigengrad").addHandler(handler)
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    import eigengrad as eg

    for _ in range(2):
        A = torch.randn(6, 8, 8)
        A = (A @ A.mT + torch.eye(8)).requires_grad_()
        L, V = eg.eigh(A)
        assert torch.allclose(L, torch.linalg.eigvalsh(A), rtol=1e-4)
        (gA,) = torch.autograd.grad(V[..., 0].square().sum() + L.sum(), A)
        assert torch.allclose(gA.diagonal(dim1=-2, dim2=-1).sum(-1), torch.tensor(8.0), rtol=1e-3)
        root = eg.matrix_sqrt(A)
        assert torch.allclose(root @ root, A, rtol=1e-3, atol=1e-3)
        root.sum().backward()
        layer = eg.nn.DecorrelatedBatchNorm2d(16, group_size=4, eps=1e-6)
        x = torch.randn(8, 16, 4, 4, requires_grad=True)
        y = layer(x)
        points = y.transpose(0, 1).reshape(4, 4, -1)
        assert torch.allclose(points @ points.mT / points.shape[-1], torch.eye(4), atol=1e-3)
        y.pow(3).sum().backward()
        s = torch.randn(1, 16, 9, 9, requires_grad=True)
        eg.nn.functional.whiten_color(x, s.expand(8, -1, -1, -1)).sum().backward()
        for gradient in (A.grad, x.grad, s.grad):
            assert torch.isfinite(gradient).all()
    config = eg.show_config()
    told = [message for message in messages if "without its CPU kernels" in message]
"""


def run(script, *, before="", path="", **environment):
    """The script after :data:`USE`, which comes after ``before``, in a new process."""
    text = "\n".join(textwrap.dedent(part) for part in (before, USE, script))
    paths = os.pathsep.join([*([str(path)] if path else []), *sys.path])
    variables = os.environ | {"PYTHONPATH": paths} | environment
    result = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


def test_versions_and_threads_are_those_of_this_process():
    lines = dict(line.split(maxsplit=1) for line in eg.show_config().splitlines()[:5])
    assert lines["eigengrad"] == eg.__version__
    assert lines["Python"].startswith(platform.python_version())
    assert lines["torch"] == torch.__version__
    assert f"threads       {torch.get_num_threads()}, " in eg.show_config()


@numba
def test_kernels_are_on_with_a_folder_until_they_are_turned_off():
    assert "CPU kernels   on\nkernel cache  " in eg.show_config()
    with eg.kernels.disable():
        assert "CPU kernels   off: disabled by eigengrad.kernels.disable()\nkernel cache  not used" in eg.show_config()
    assert "CPU kernels   on\n" in eg.show_config()


def test_numba_that_is_not_installed_is_one_warning():
    run(
        """
        assert len(told) == 1 and "numba is not installed (pip install numba)" in told[0], messages
        assert "CPU kernels   off: numba is not installed" in config, config
        try:
            eg.kernels.enable()
        except RuntimeError as error:
            assert "numba is not installed" in str(error)
        else:
            raise AssertionError
        """,
        before="import sys; sys.modules['numba'] = None",
    )


def test_numba_that_does_not_import_is_one_warning(tmp_path):
    """As one that is too old or too new for the installed numpy."""
    (tmp_path / "numba").mkdir()
    tried = tmp_path / "tried"
    (tmp_path / "numba" / "__init__.py").write_text(
        f"open({str(tried)!r}, 'a').write('x')\nraise ImportError('Numba needs NumPy 9 or less')"
    )
    run(
        """
        assert len(told) == 1 and "(ImportError: Numba needs NumPy 9 or less)" in told[0], messages
        assert "CPU kernels   off: numba cannot be used (ImportError" in config, config
        """,
        path=tmp_path,
    )
    assert tried.read_text() == "x"  # an import that fails is not repeated by every call


@numba
@pytest.mark.parametrize(
    "module",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("eigensolvers.batched_ql", "feature_maps.whitening")]
    + ["vjp.batched"],
)
def test_a_kernel_module_that_does_not_import_is_one_warning(module):
    run(
        f"""
        assert len(told) == 1 and "kernel {module}." in told[0] and "ModuleNotFoundError" in told[0], messages
        assert "CPU kernels   off: kernel {module}." in config, config
        """,
        before=f"import sys; sys.modules['eigengrad.kernels.{module}'] = None",
    )


@numba
def test_a_kernel_that_does_not_compile_is_one_warning():
    run(
        """
        assert len(told) == 1 and "(TypeError: this compiler knows no sums)" in told[0], messages
        assert "CPU kernels   off: kernel " in config, config
        """,
        before="""
        import numba

        def cfunc(*arguments, **options):
            def fail(function):
                raise TypeError("this compiler knows no sums")
            return fail

        numba.cfunc = cfunc
        """,
    )


@numba
@pytest.mark.parametrize("how", ["environment", "function"])
def test_the_switch_keeps_functions_and_layers_from_every_kernel_without_a_warning(how):
    """What is never imported cannot be launched."""
    environment = {"EIGENGRAD_KERNELS": "0"} if how == "environment" else {}
    run(
        """
        import sys
        assert messages == [], messages
        assert "numba" not in sys.modules
        assert "eigengrad.kernels.runtime.launch" not in sys.modules
        """,
        before="import eigengrad; eigengrad.kernels.disable()" if how == "function" else "",
        **environment,
    )


@numba
def test_warmup_refuses_what_is_no_type_or_subject_of_kernels():
    with pytest.raises(ValueError, match=r"dtypes must be torch\.float32 or torch\.float64; got torch\.float16"):
        eg.kernels.warmup(torch.float16)
    with pytest.raises(ValueError, match="subjects: got 'eigh'; expected one of 'eigensolvers'"):
        eg.kernels.warmup(subjects=["eigh"])
    with eg.kernels.disable(), pytest.raises(eg.kernels.KernelsUnavailableError, match="disabled by"):
        eg.kernels.warmup()


@numba
def test_warmup_knows_every_kernel_that_is_ever_loaded():
    """Those of the plans of all sizes, of backward passes and of layers."""
    import re
    from pathlib import Path

    from eigengrad.kernels.warmup import _kernels

    package = Path(eg.kernels.__file__).parent
    defined = {
        (".".join(path.relative_to(package).with_suffix("").parts), name)
        for path in package.rglob("*.py")
        for name in re.findall(r"@kernel\ndef (\w+)", path.read_text())
    }
    assert defined
    assert set(_kernels(["eigensolvers", "vjp", "feature_maps"])) == defined


def test_without_numba_the_warning_breaks_no_graph_of_the_compiler():
    run(
        """
        compiled = torch.compile(lambda A: eg.eigh(A).eigenvalues.sum(), fullgraph=True, backend="aot_eager")
        compiled(A).backward()
        assert len(told) == 1
        """,
        before="""
        import sys
        sys.modules["numba"] = None
        import torch
        import eigengrad as eg
        first = torch.compile(lambda A: eg.eigh(A).eigenvalues.sum(), fullgraph=True, backend="aot_eager")
        first(torch.eye(3))
        """,
    )
