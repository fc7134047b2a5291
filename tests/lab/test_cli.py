"""The command line, on real files and with real processes."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import eigengrad
from eigengrad.lab.app import app, bench, compare, fidelity, reproduce, sweep, train, warmup
from eigengrad.lab.commands.terminal import explained
from eigengrad.lab.files import DamagedFileWarning
from eigengrad.lab.training import Result

RUNNER = CliRunner()
COMMANDS = (bench, compare, fidelity, reproduce, sweep, train, warmup)
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command in a folder of its own: its exit code and all that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))

    def run(*arguments):
        outcome = RUNNER.invoke(app, arguments)
        assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
        return outcome.exit_code, outcome.output

    return run


def process(*arguments, cwd, env=ONE_THREAD):
    return subprocess.Popen(
        [sys.executable, "-m", "eigengrad.lab.cli", *arguments],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# Help -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [command.__name__ for command in COMMANDS])
def test_help_of_every_command_teaches_by_examples(call, command):
    code, text = call(command, "--help")
    assert code == 0
    assert len(re.findall(rf"eigengrad {command}\b", text)) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_work(call, command):
    """Those that need no data, as dry runs."""
    block = re.search(r"```\n(.*?)```", command.__doc__, re.DOTALL).group(1)
    examples = [shlex.split(line) for line in block.splitlines() if line.strip() and "DIR" not in line]
    assert examples
    for program, *arguments in examples:
        assert program == "eigengrad"
        code, text = call(*arguments, "--dry-run")
        assert code == 0, text


def test_help_without_a_command_names_them_all_and_is_misuse(call):
    code, text = call()
    assert code == 2
    assert all(command.__name__ in text for command in COMMANDS)
    assert call("--help")[0] == 0


def test_version(call):
    assert call("--version") == (0, f"eigengrad {eigengrad.__version__}\n")


def test_info_shows_what_show_config_returns(call):
    assert call("info") == (0, eigengrad.show_config() + "\n")


def test_warmup_says_how_long_it_took_and_what_it_compiles_is_kept(tmp_path):
    pytest.importorskip("numba")
    env = {**ONE_THREAD, "NUMBA_CACHE_DIR": str(tmp_path)}
    one_kernel = """
        import sys
        import eigengrad.kernels.warmup
        from eigengrad.lab.cli import main
        sys.modules["eigengrad.kernels.warmup"]._kernels = lambda subjects: [("feature_maps.whitening", "pivots")]
        sys.argv = ["eigengrad", "warmup", "--float64"]
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(one_kernel)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"kernels ready after \d+ s", done.stdout)
    assert "2/2" in done.stdout
    assert len(list(tmp_path.rglob("*.nbi"))) == 2


def test_warmup_without_kernels_fails_and_says_why(tmp_path):
    run = process("warmup", cwd=tmp_path, env={**ONE_THREAD, "EIGENGRAD_KERNELS": "0"})
    text, _ = run.communicate(timeout=120)
    assert (run.returncode, text) == (1, "error: kernels cannot be compiled: EIGENGRAD_KERNELS=0\n")


@pytest.mark.parametrize("missing", ["typer", pytest.param("rich", marks=pytest.mark.slow)])
def test_without_the_extra_a_sentence_says_what_to_install_and_info_and_warmup_still_work(tmp_path, missing):
    def run(*arguments):
        script = f"import sys\nsys.modules[{missing!r}] = None\nimport eigengrad.lab.cli as cli\ncli.main()"
        command = [sys.executable, "-c", script, *arguments]
        env = {**ONE_THREAD, "EIGENGRAD_KERNELS": "0"}
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    refused = run("compare")
    assert refused.returncode == 1
    assert f"{missing} is not installed): in a clone of the repository, pip install '.[lab]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    shown = run("info")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("eigengrad ")
    warmed = run("warmup", "--float64")  # this far without the extra: kernels are off
    assert (warmed.returncode, warmed.stderr) == (1, "error: kernels cannot be compiled: EIGENGRAD_KERNELS=0\n")


# Misuse: exit code 2, and a sentence ----------------------------------------------------------------------------------


TRANSLATE = ("translate", "train", "--domain-a", ".", "--domain-b", ".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--norm", "foo"), "norm: got 'foo'; expected one of 'batchnorm', 'dbn'"),
        (("train", "--group-size", "5", "--epochs", "1"), "group_size=5 does not divide num_features=32"),
        (("train", "--lr", "-1"), "error: --lr must be positive; got -1"),
        (("train", "--batch-size", "0"), "error: --batch-size must be at least 1; got 0"),
        (("train", "--epochs", "many"), "'--epochs'"),
        (("train", "--data", "cifar10", "--data-root", "nowhere"), "nowhere: does not exist. Get cifar-10-python"),
        (("train", "--data", "cifar10"), "--data-root) must say where it is"),
        (("sweep", "fig3"), "fig3 trains nothing"),
        (("sweep", "table99"), "experiment: got 'table99'; expected one of"),
        (("sweep", "table4", "--scale", "smoke", "--group-size", "5"), "group size 5 does not divide the 64 channels"),
        (("sweep", "table4", "--scale", "smoke", "--trials", "0"), "'--trials'"),
        (("sweep", "table4", "--scale", "smoke", "--backend", "cloud"), "backend: got 'cloud'; expected one of"),
        (("reproduce", "fig3", "--scale", "huge"), "scale: got 'huge'; expected one of 'paper', 'small', 'smoke'"),
        (("reproduce", "fig3", "--backend", "cloud"), "backend: got 'cloud'; expected one of"),
        (("reproduce", "fig3", "figure4"), "experiment: got 'figure4'; expected one of"),
        (("reproduce", "table4", "--scale", "small"), "Get cifar-10-python.tar.gz"),
        (("reproduce",), "Missing argument"),
        (("bench", "speed"), "no benchmark is called 'speed'; there are: whitening, eigh, dispatch, derivatives"),
        (("compare", "--jobs", "0"), "'--jobs'"),
        (("warmup", "kernels"), "subjects: got 'kernels'; expected one of 'eigensolvers', 'feature_maps', 'vjp'"),
        (("translate-nothing",), "No such command"),
        (("fetch", "mnist"), "NAME: got 'mnist'; expected one of 'cifar10', 'cifar100', 'tiny_imagenet'"),
        ((*TRANSLATE, "--image-size", "32"), "error: --image-size must be at least 64 for 3 scales"),
        ((*TRANSLATE, "--width", "5"), "error: --group-size must divide the 20 channels of the features (4 × --width)"),
    ],
)
def test_misuse_is_explained(call, arguments, message):
    code, text = call(*arguments)
    assert code == 2
    assert message in re.sub(r"\s+", " ", text)
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "arguments", [("train", "--data", "cifar10", "--data-root", "nowhere"), ("train", "--group-size", "5")]
)
def test_a_run_that_cannot_begin_leaves_nothing(call, tmp_path, arguments):
    assert call(*arguments)[0] == 2
    assert not list(tmp_path.glob("results/runs/*"))


def test_what_cannot_be_written_is_said(call, tmp_path):
    (tmp_path / "results").write_text("a file, not a folder")
    code, text = call("train", "--epochs", "1")
    assert code in (1, 2)
    assert "results" in text
    assert "Traceback" not in text
    assert "Errno" not in text
    code, text = call("reproduce", "fig3")
    assert code == 2
    assert "--results: results is a file; expected a folder" in text


# One run --------------------------------------------------------------------------------------------------------------


def test_train_writes_a_result_and_does_not_repeat_it(call, tmp_path):
    code, text = call("train", "--epochs", "1", "--subset", "200", "--out", "run", "--threads", "1")
    assert code == 0
    assert "best test error" in text
    result = Result.load(tmp_path / "run")
    assert result.succeeded
    assert (result.config.epochs, result.config.subset, result.config.gradient) == (1, 200, "taylor")
    before = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    assert call("train", "--epochs", "1", "--subset", "200", "--out", "run", "--threads", "1")[0] == 0
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == before
    code, text = call("train", "--epochs", "2", "--subset", "200", "--out", "run")
    assert code == 2  # another run is in that folder
    assert "epochs" in text
    assert call("train", "--epochs", "1", "--subset", "200", "--out", "run", "--fresh")[0] == 0
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns > before


def test_a_damaged_file_is_named_in_a_line(capsys):
    with explained():
        warnings.warn("step-7.pt is damaged; going on from step-6.pt", DamagedFileWarning, stacklevel=1)
    assert capsys.readouterr().err == "error: step-7.pt is damaged; going on from step-6.pt\n"


def test_a_plan_is_made_with_the_threads_of_the_run(call, monkeypatch):
    seen = []

    def watched(task, engine):
        seen.append((torch.get_num_threads(), torch.initial_seed()))
        return 1.0, ""

    monkeypatch.setattr("eigengrad.lab.commands.train.step_time", watched)
    before = torch.get_num_threads(), torch.initial_seed()
    assert call("train", "--dry-run", "--threads", "1", "--seed", "12345")[0] == 0
    assert seen == [(1, 12345)]
    assert (torch.get_num_threads(), torch.initial_seed()) == before


def test_a_run_that_fails_has_exit_code_1_and_a_result_that_says_why(call, tmp_path):
    code, text = call("train", "--epochs", "3", "--lr", "1e12", "--out", "run")
    assert code == 1
    failure = Result.load(tmp_path / "run").failure
    assert failure is not None
    assert " ".join(text.split()).count(failure.message) == 1
    assert f"the run failed at step {failure.step}" in text


def test_what_is_not_given_is_the_papers_protocol(call, tmp_path):
    """On a tiny ImageFolder, which stands for ImageNet: the plan shows AlexNet and the schedule of MPN-COV."""
    from PIL import Image

    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (40, 40), (40 * number, 80, 120)).save(
                    tmp_path / "data" / split / name / f"{number}.png"
                )
    arguments = ("--image-size", "63", "--width", "4", "--stem-width", "4", "--batch-size", "2")
    code, text = call("train", "--data", "folder", "--data-root", "data", *arguments, "--dry-run")
    assert code == 0
    assert re.search(r"model +alexnet", text)
    assert re.search(r"epochs +20\n", text)
    assert re.search(r"pooling +svd_taylor", text)
    assert "estimated time:" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]  # nothing was written


# Experiments ----------------------------------------------------------------------------------------------------------


def test_dry_runs_print_the_plan_and_the_time_and_write_nothing(call, tmp_path):
    for arguments in (
        ("sweep", "table4", "--scale", "small", "--data-root", "DIR", "--jobs", "2"),
        ("sweep", "table8", "--scale", "smoke"),
        ("reproduce", "all", "--scale", "paper"),
        ("compare",),
        ("bench", "eigh", "--threads", "1"),
        ("train",),
    ):
        code, text = call(*arguments, "--dry-run")
        assert code == 0
        assert "estimated time:" in text
    assert not list(tmp_path.iterdir())


def test_a_plan_knows_what_methods_cost_and_that_jobs_share_cores(call, monkeypatch):
    def minutes(*arguments):
        text = call("sweep", "table4", "--scale", "paper", "--group-size", "64", *arguments, "--dry-run")[1]
        number, unit = re.search(r"^estimated time: ([\d,]+) (s|min|h|days) ", text, re.MULTILINE).groups()
        return int(number.replace(",", "")) * {"s": 1 / 60, "min": 1, "h": 60, "days": 1440}[unit], text

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    two, text = minutes("--jobs", "2")
    assert "share" not in text
    eight, text = minutes("--jobs", "8")
    assert eight == pytest.approx(two, rel=0.05)  # eight do no more than two on two cores
    assert "8 jobs share 2 cores" in text
    one, _ = minutes("--jobs", "1", "--gradient", "taylor")
    slow, _ = minutes("--jobs", "1", "--gradient", "power_iteration")
    assert slow == pytest.approx(2.1 / 1.3 * one, rel=0.05)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 6.0, 6.0))
    busy, text = minutes("--jobs", "2")
    assert busy == pytest.approx(4 * two, rel=0.05)
    assert "other work (a load of 6.0)" in text


def test_a_sweep_takes_any_gradient_and_any_field(call, tmp_path):
    code, text = call(
        *("sweep", "table4", "--scale", "smoke", "--group-size", "4", "--trials", "1", "--jobs", "1"),
        *("--gradient", "clip(threshold=50)", "--set", "epochs=1", "--set", "average=whitening", "--set", "subset=200"),
    )
    assert code == 0, text
    (run,) = {path.parent for path in (tmp_path / "results" / "runs").glob("*/result.json")}
    config = Result.load(run).config
    assert (config.gradient, config.epochs, config.average) == ("clip(threshold=50)", 1, "whitening")
    assert run.name in text
    assert "eigengrad reproduce" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table4", "--set", "depth=3"), "--set: got 'depth=3'; expected NAME=VALUE with one of the names"),
        (("table4", "--set", "seed=3"), "seed is not for a sweep to set"),
        (("table4", "--set", "eps=small"), "got eps=small; expected a number"),
        (("table4", "--gradient", "soft"), "gradient: got 'soft'; expected one of"),
        (("table8", "--gradient", "clip"), "--gradient and --set are for the experiments that classify"),
    ],
)
def test_a_sweep_refuses_what_is_no_field_and_no_gradient(call, arguments, message):
    code, text = call("sweep", *arguments, "--scale", "smoke", "--dry-run")
    assert code == 2
    assert message in " ".join(text.split())


def test_a_dry_run_says_which_data_is_missing(call):
    code, text = call("reproduce", "all", "--scale", "small", "--dry-run")
    text = re.sub(r"\s+", " ", text)
    assert code == 0
    assert "data for fig1b, table3, fig5, table4, fig6, errors_cifar is missing. cifar10: data_root" in text
    assert "eigengrad fetch cifar100 --data-root DIR" in text
    assert "data for fig9, fig10, table8, table9, whiteness is missing. artworks: data_root" in text
    code, text = call("reproduce", "all", "--scale", "smoke", "--dry-run")
    assert (code, "all data is there" in text) == (0, True)


def test_fetch_says_what_it_would_download(call, tmp_path):
    code, text = call("fetch", "cifar10", "cifar100", "--data-root", "DIR", "--dry-run")
    assert code == 0
    assert (
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, 170 MB → DIR/cifar10/cifar-10-python.tar.gz" in text
    )
    assert not list(tmp_path.iterdir())


def test_fetch_puts_each_data_set_where_the_experiments_look(call, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("eigengrad.lab.data.fetch", lambda name, root: asked.append((name, root)) or root / "file")
    code, text = call("fetch", "cifar10", "--data-root", str(tmp_path))
    assert (code, asked) == (0, [("cifar10", tmp_path / "cifar10")])
    assert f"cifar10 is in {tmp_path / 'cifar10' / 'file'}" in text


def test_every_command_that_computes_takes_threads(call):
    for command in (
        *(("compare",), ("train",), ("sweep",), ("reproduce",), ("bench",), ("color",), ("stylize",), ("doctor",)),
        *(("stylize", "train-codec"), ("studio",), ("translate", "train"), ("translate", "apply")),
    ):
        code, text = call(*command, "--help")
        assert (code, "--threads" in text) == (0, True), command


def test_the_help_of_stylize_shows_its_options(call):
    code, text = call("stylize", "--help")
    assert code == 0
    for option in ("--blend", "--mask", "--each", "--strength", "--style-size"):
        assert option in text


def test_errors_are_per_cent_in_the_line_of_an_epoch(call):
    text = call("train", "--epochs", "1", "--subset", "200", "--threads", "1")[1]
    assert re.search(r"epoch 1/1 .*train error \d+\.\d\d %  test error \d+\.\d\d %", re.sub(r"\s*\n", " ", text))


def test_the_time_of_runs_that_experiments_share_counts_once(call):
    def total(*names):
        text = call("reproduce", *names, "--scale", "small", "--jobs", "1", "--dry-run")[1]
        number, unit = re.search(r"^estimated time: (\d+) (s|min|h)$", text, re.MULTILINE).groups()
        return int(number) * {"s": 1, "min": 60, "h": 3600}[unit]

    assert total("table3", "fig5") == total("table3")
    assert total("table3", "table4") > total("table4")


def test_reproduce_what_needs_no_training(call, tmp_path):
    code, text = call("reproduce", "fig3", "fig4", "--scale", "smoke", "--results", "out")
    assert code == 0
    assert "confirmed. Taylor expansion turns the column by 5.71°" in text
    page = tmp_path / "out" / "report" / "index.html"
    assert page.resolve().as_uri() in text
    assert "Figure 3" in page.read_text()
    assert "Figure 4" in page.read_text()
    assert (tmp_path / "out" / "fig3" / "smoke" / "README.md").exists()


@pytest.mark.slow
def test_sweep_then_reproduce_shares_the_runs(call, tmp_path):
    """Table 3 and Figure 5 from the same three runs, which are done once."""
    options = ("--scale", "smoke", "--trials", "1", "--jobs", "1", "--threads", "1")
    code, text = call("sweep", "table3", *options)
    assert code == 0, text
    assert "3 runs (0 done, 3 to go)" in text
    assert "3 runs are done: 3 succeeded, 0 failed" in text
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "results" / "runs").glob("*/result.json")}
    assert len(files) == 3
    code, text = call("reproduce", "table3", "fig5", *options)
    assert code == 0, text
    assert "3 runs (3 done, 0 to go)" in text
    assert {path: path.stat().st_mtime_ns for path in files} == files
    table = (tmp_path / "results" / "table3" / "smoke" / "table3.csv").read_text().splitlines()
    assert len(table) == 4
    assert all(
        line.endswith('smoke,"digits (scikit-learn), 1,297 training images",convolutional network (stem 64),3,1,64')
        for line in table[1:]
    )
    runs = json.loads((tmp_path / "results" / "table3" / "smoke" / "runs.json").read_text())
    assert [run["outcome"] for run in runs] == ["succeeded"] * 3
    assert all(len(run["curves"]["test_error"]) == 3 for run in runs)
    page = (tmp_path / "results" / "report" / "index.html").read_text()
    assert "table3-smoke" in page
    assert "fig5-smoke" in page
    assert page.index("table3-smoke") < page.index("fig5-smoke")


def test_what_cannot_be_done_does_not_stop_the_others(call, tmp_path):
    code, text = call("reproduce", "table4", "fig4", "--scale", "small", "--results", "out")
    assert code == 1
    assert "table4: cifar10: data_root" in text
    assert (tmp_path / "out" / "fig4" / "small" / "outcome.json").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_the_same_command_continues(tmp_path):
    arguments = ("train", "--epochs", "60", "--subset", "640", "--out", "run", "--threads", "1")
    running = process(*arguments, cwd=tmp_path)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "run").glob("**/*.pt")) and time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    text, _ = running.communicate(timeout=300)
    assert running.returncode == 130, text
    assert "again" in text
    assert "Traceback" not in text
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.slow
def test_compare_trains_every_method_and_writes_the_page(tmp_path):
    running = process("compare", "--trials", "1", cwd=tmp_path)
    text, _ = running.communicate(timeout=300)
    assert running.returncode == 0, text
    for method in ("SVD", "PI", "SVD-Clip", "SVD-PI", "SVD-Taylor", "Exact (ours)", "IterNorm", "Batch norm"):
        assert method in text
    page = tmp_path / "results" / "report" / "index.html"
    assert page.resolve().as_uri() in text
    assert "Every method on embedded data" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table4", "fig1b", "fig6", "fig7", "table5", "table6", "table7", "fig1a", "fig11"])
def test_every_experiment_runs_at_the_smoke_scale(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "smoke"  # one folder, so that runs are shared
    folder.mkdir(exist_ok=True)
    running = process("reproduce", name, "--scale", "smoke", "--trials", "1", "--threads", "1", cwd=folder)
    text, _ = running.communicate(timeout=600)
    assert running.returncode == 0, text
    assert (folder / "results" / name / "smoke" / "outcome.json").exists()


# Benchmarks -----------------------------------------------------------------------------------------------------------


def test_bench_knows_the_subjects_of_the_checkout(call):
    code, text = call("bench", "--dry-run")
    assert code == 0
    listed = text.split("run.py ")[1].splitlines()[0].split()
    script = Path(text.split()[1])
    help_text = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True).stdout
    assert set(listed) == set(re.search(r" of: ([\w,\s]+?);", help_text).group(1).replace(",", " ").split())


def test_bench_without_a_checkout_says_what_to_do(tmp_path):
    """The package copied to where no benchmarks are, as an installed one is."""
    shutil.copytree(Path(eigengrad.__file__).parent, tmp_path / "site" / "packages" / "eigengrad")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**ONE_THREAD, "PYTHONPATH": str(tmp_path / "site" / "packages")}
    running = process("bench", "eigh", cwd=elsewhere, env=environment)
    text, _ = running.communicate(timeout=300)
    assert running.returncode == 2, text
    assert "benchmarks are not part of the installed package" in text
    assert "Clone the repository" in text


# Fidelity and reports -------------------------------------------------------------------------------------------------


def test_fidelity_measures_every_method_along_a_training(call, tmp_path):
    code, text = call("fidelity", "--steps", "3", "--every", "2", "--group-size", "4")
    assert code == 0, text
    for part in ("SVD-Taylor, K = 9", "SVD-PI", "Exact (ours)", "share of λ₁", "index.html"):
        assert part in text
    assert (tmp_path / "results" / "fidelity" / "own" / "fidelity.png").exists()
    code, text = call("fidelity", "--group-size", "5")
    assert code == 2
    assert "5" in text


def test_report_builds_the_page_and_the_scoreboard_of_what_was_run(call, tmp_path):
    assert call("report")[0] == 2  # nothing there
    assert call("reproduce", "fig3", "--scale", "smoke")[0] == 0
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- scoreboard: begin -->\noutdated\n<!-- scoreboard: end -->\nafter\n")
    code, text = call("report", "--document", "page.md")
    assert code == 0, text
    assert "fig3/smoke  confirmed. Taylor expansion turns" in text
    written = document.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "outdated" not in written
    assert "`eigengrad reproduce fig3 --scale smoke`" in written
    picture = re.search(r"\]\((images/experiments/\S+\.png)\)", written)[1]
    assert (tmp_path / picture).exists()
    (tmp_path / "results" / "fig3" / "smoke" / "outcome.json").write_text("{")
    code, text = call("report")
    assert code == 1
    assert "is damaged" in text
    document.write_text("no marks")
    assert call("report", "--document", "page.md")[0] == 2
