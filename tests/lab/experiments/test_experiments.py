"""The experiments: the paper's protocols and numbers, statistics over trials, and what may be concluded from them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ks_2samp

from eigengrad.lab.experiments import (
    DECIDING,
    EXPERIMENTS,
    ORDER,
    SCALES,
    Context,
    TrainedExperiment,
    find,
    table3,
    table4,
    table5,
    table6,
    table7,
)
from eigengrad.lab.experiments.comparison import Comparison
from eigengrad.lab.experiments.fig1a import _sentence as judge_sentence
from eigengrad.lab.experiments.fig4 import discarded
from eigengrad.lab.experiments.methods import POOLING, WHITENING
from eigengrad.lab.experiments.parallel import starmap
from eigengrad.lab.experiments.presets import PROTOCOLS
from eigengrad.lab.experiments.records import record, write_records
from eigengrad.lab.experiments.trained import located
from eigengrad.lab.experiments.trials import Trials
from eigengrad.lab.experiments.verdicts import median_interval, within
from eigengrad.lab.experiments.wishart import close_pairs, dense_smallest_gaps, smallest_gaps
from eigengrad.lab.training import Config, Failure, Result
from eigengrad.nn.second_order_pool import METHODS as POOLING_METHODS

#: What the runs of the paper's claims are: not tables or figures of it, but pairs of runs, trainings, replays.
ON_DIGITS = ("errors", "settings", "convergence", "survival", "free_runs", "running_statistics")
ON_PICTURES = ("fidelity", "pooling_fidelity", "errors_cifar", "large_covariances", "whiteness")
TRAINED = {name: e for name, e in EXPERIMENTS.items() if isinstance(e, TrainedExperiment)}


def keys(name, scale, tmp_path, **options):
    return {config.key() for config in find(name).configs(scale, Context(tmp_path, **options))}


# Random covariance matrices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "n"), [(2, 4), (6, 12), (24, 48), (12, 13)])
def test_the_bidiagonal_model_has_the_distribution_of_matrices_that_are_drawn(d, n):
    model = smallest_gaps(d, n, 4000, np.random.default_rng(1))
    drawn = dense_smallest_gaps(d, n, 4000, np.random.default_rng(2))
    assert ks_2samp(model, drawn).pvalue > 0.01


def test_a_wrong_number_of_degrees_of_freedom_would_be_noticed():
    """Forgetting that centring takes one away shifts the distribution by more than the test above lets pass."""
    model = smallest_gaps(6, 13, 4000, np.random.default_rng(1))
    drawn = dense_smallest_gaps(6, 12, 4000, np.random.default_rng(2))
    assert ks_2samp(model, drawn).pvalue < 0.01


def test_the_formula_predicts_how_many_matrices_have_close_eigenvalues():
    d, threshold, count = 80, 0.2, 2000
    share = float((smallest_gaps(d, 2 * d, count, np.random.default_rng(3)) < threshold).mean())
    expected = -math.expm1(-close_pairs(d, 2 * d, threshold))
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_uniform_entries_have_a_twelfth_of_the_variance():
    uniform = dense_smallest_gaps(8, 16, 4000, np.random.default_rng(4), entries="uniform")
    assert 12 * np.median(uniform) == pytest.approx(
        np.median(smallest_gaps(8, 16, 4000, np.random.default_rng(5))), rel=0.05
    )


@pytest.mark.parametrize("shape", [(1, 4), (4, 4), (5, 3)])
def test_shapes_without_two_eigenvalues_or_full_rank_are_refused(shape):
    with pytest.raises(ValueError, match="expected 2 ≤ d < n"):
        smallest_gaps(*shape, 1, np.random.default_rng(0))


def test_tasks_give_the_same_in_one_process_and_in_two():
    tasks = [(7, 2), (9, 4), (1, 3)]
    assert list(starmap(divmod, tasks, 1)) == list(starmap(divmod, tasks, 2)) == [(3, 1), (2, 1), (0, 1)]


# Analytic experiments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fig3", "fig4", "fig11"])
def test_what_is_arithmetic_is_confirmed(name, tmp_path):
    context = Context(tmp_path)
    outcome = find(name).run("smoke", context)
    assert {finding.verdict for finding in outcome.findings} == {"confirmed"}
    folder = context.directory(name, "smoke")
    for figure in outcome.figures:
        assert (folder / f"{figure.name}.png").stat().st_size < 200_000
        assert (folder / f"{figure.name}.svg").exists()


def test_the_table_of_figure_3_has_the_numbers_of_the_appendix(tmp_path):
    (table,) = find("fig3").run("smoke", Context(tmp_path)).tables
    taylor, clip = table.rows[1:]
    assert taylor[2] == "99.9, 1000"
    assert taylor[3] == pytest.approx(84.29, abs=0.005)
    assert taylor[5] == pytest.approx(5.71, abs=0.005)
    assert clip[2] == "100, 100"
    assert clip[5] == pytest.approx(45)


@pytest.mark.parametrize(("x", "degree"), [(0.3, 0), (0.85, 9), (0.85, 19), (0.999, 30)])
def test_the_share_that_is_left_out_is_a_power(x, degree):
    assert discarded(x, degree) == pytest.approx(x ** (degree + 1), rel=1e-10)


def test_figure_1a_counts_more_close_pairs_in_larger_matrices_and_at_larger_thresholds(tmp_path):
    outcome = find("fig1a").run("smoke", Context(tmp_path, jobs=1))
    covariance = next(table for table in outcome.tables if table.name == "fig1a_covariance")
    shares = np.array([row[1:] for row in covariance.rows])
    assert (np.diff(shares, axis=1) <= 0).all()
    assert shares[-1, 0] > shares[0, 0]
    assert covariance.conditions["matrices"].startswith("200 for each of 4 dimensions")


@pytest.mark.parametrize(
    ("close", "total", "verdict"), [(260, 200_000, "confirmed"), (9, 10_000, "undecided"), (100, 200_000, "refuted")]
)
def test_the_sentence_of_figure_1a_is_judged_by_the_interval_of_its_count(close, total, verdict):
    gaps = np.full(total, 1.0)
    gaps[:close] = 12 * 2.0**-11
    assert judge_sentence(gaps).verdict == verdict


# Protocols ------------------------------------------------------------------------------------------------------------


def test_the_names_are_those_of_the_paper_and_of_what_decides_its_claims():
    assert set(EXPERIMENTS) == {
        *("fig1a", "fig1b", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig9", "fig10", "fig11"),
        *("table3", "table4", "table5", "table6", "table7", "table8", "table9", "table10"),
        *DECIDING,
    }
    assert set(DECIDING) == {*ON_DIGITS, *ON_PICTURES}
    assert ORDER[: len(DECIDING)] == DECIDING
    with pytest.raises(ValueError, match=r"'fig99'; expected one of .*'table4'"):
        find("fig99")


def test_the_protocol_of_the_paper():
    base = PROTOCOLS["cifar10"]["paper"].base
    assert (base.model, base.stem_width, base.width) == ("resnet18", 64, 64)
    assert (base.epochs, base.batch_size, base.lr, base.momentum, base.weight_decay) == (350, 128, 0.1, 0.9, 5e-4)
    assert (base.lr_step, base.lr_factor, base.eps, base.degree, base.subset) == (100, 0.1, 0.01, 9, None)
    tiny = PROTOCOLS["tiny_imagenet"]["paper"].base
    assert (tiny.epochs, tiny.lr_step, tiny.lr) == (90, 30, 0.1)
    trials = {protocol: scales["paper"].trials for protocol, scales in PROTOCOLS.items() if "paper" in scales}
    assert (trials["cifar10"], trials["hyperparameters"], trials["tiny_imagenet"]) == (15, 8, 5)
    assert PROTOCOLS["cifar10"]["paper"].group_sizes == (4, 8, 16, 32, 64)
    assert PROTOCOLS["hyperparameters"]["paper"].base.data == "cifar100"
    pooling = PROTOCOLS["pooling"]["paper"].base
    assert (pooling.data, pooling.image_size, pooling.epochs) == ("imagenet", 227, 20)
    assert (pooling.model, pooling.stem_width, pooling.norm) == ("alexnet_mpncov", 96, "batchnorm")
    assert pooling.colour_jitter == 0.4
    last = pooling.lr * pooling.lr_factor**19
    assert (math.log10(pooling.lr), math.log10(last)) == pytest.approx((-1.2, -5.2))


def test_the_small_scale_differs_from_the_paper_only_in_size():
    small, paper = (PROTOCOLS["cifar10"][scale].base for scale in ("small", "paper"))
    assert set(small.differences(paper.hash_fields())) == {"subset", "width", "epochs", "lr_step"}
    assert small.stem_width == 64


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("scale", SCALES)
def test_every_trained_experiment_has_a_plan_at_every_scale(name, scale, tmp_path):
    experiment, context = TRAINED[name], Context(tmp_path, jobs=2)
    plan = experiment.plan(scale, context)
    configs = experiment.configs(scale, context)
    assert plan.seconds > 0
    assert f"{len(configs)} runs (0 done, {len(configs)} to go)" in plan.steps[0]
    assert set(plan.runs) == {config.key() for config in configs}
    assert all(config.stem_width % config.group_size == 0 for config in configs)
    assert (scale == "smoke" or name in ON_DIGITS) == (configs[0].data == "digits")
    assert not list(tmp_path.iterdir())


def test_table_4_at_the_papers_scale_has_every_method_dimension_and_trial(tmp_path):
    configs = find("table4").configs("paper", Context(tmp_path))
    assert len(configs) == 7 * 5 * 15 + 15
    assert {config.seed for config in configs} == set(range(15))
    whitened = {(c.gradient, c.group_size) for c in configs if c.norm == "dbn"}
    assert whitened == {
        (g, d) for g in ("svd", "pi", "clip", "power_iteration", "taylor", "exact") for d in (4, 8, 16, 32, 64)
    }
    assert sum(config.norm == "batchnorm" for config in configs) == 15


def test_figures_share_the_runs_of_their_tables(tmp_path):
    for scale in ("smoke", "small"):
        assert keys("fig1b", scale, tmp_path) < keys("table4", scale, tmp_path)
        assert keys("fig5", scale, tmp_path) == keys("table3", scale, tmp_path)
    for scale in ("smoke", "paper"):
        assert keys("fig6", scale, tmp_path) < keys("table4", scale, tmp_path)
    # At the small scale d = 8, which the paper's figure has, is the figure's own.
    assert len(keys("fig6", "small", tmp_path) - keys("table4", "small", tmp_path)) == 4 * 3
    assert len(keys("fig6", "small", tmp_path) & keys("table4", "small", tmp_path)) == 4 * 2 * 3
    assert len(keys("fig1b", "paper", tmp_path)) == 5 * 18
    assert len(keys("fig1b", "paper", tmp_path) & keys("table4", "paper", tmp_path)) == 5 * 15
    # Table 3's best setting is a cell of Table 5.
    assert len(keys("table3", "paper", tmp_path) & keys("table5", "paper", tmp_path)) == 8


def test_trials_and_dimensions_can_be_chosen(tmp_path):
    chosen = keys("table4", "small", tmp_path, trials=2, group_sizes=(8, 32))
    assert len(chosen) == 7 * 2 * 2 + 2
    with pytest.raises(ValueError, match="group size 5 does not divide the 64 channels"):
        keys("table4", "small", tmp_path, group_sizes=(5,))
    with pytest.raises(ValueError, match="its networks have no groups"):
        keys("table7", "small", tmp_path, group_sizes=(4,))
    with pytest.raises(ValueError, match="'large'; expected one of 'paper', 'small', 'smoke'"):
        keys("table4", "large", tmp_path)


def test_table_7_has_every_pooling_method():
    fields = [method.fields["pooling"] for method in POOLING.values()]
    assert set(fields) == {"average", *POOLING_METHODS}
    assert set(table7.PRINTED) == {method.label for method in POOLING.values() if not method.ours}


def test_one_root_can_hold_all_data(tmp_path):
    (tmp_path / "cifar10").mkdir()
    assert located(tmp_path, "cifar10") == tmp_path / "cifar10"
    assert located(tmp_path, "cifar100") == tmp_path
    (tmp_path / "cifar100_small").mkdir()
    assert located(tmp_path, "cifar100") == tmp_path / "cifar100_small"
    assert located(tmp_path, "cifar10") == tmp_path / "cifar10"
    (tmp_path / "cifar100_large").mkdir()
    assert located(tmp_path, "cifar100") == tmp_path  # which one is meant is not for us to say


def test_compare_takes_every_method_on_embedded_data(tmp_path):
    configs = Comparison().configs("smoke", Context(tmp_path))
    assert len(configs) == 2 * len(WHITENING)
    assert {config.data for config in configs} == {"digits"}


# The paper's numbers --------------------------------------------------------------------------------------------------


def test_printed_numbers_belong_to_methods_and_dimensions_that_exist():
    sizes = (4, 8, 16, 32, 64)
    five = [method.label for method in WHITENING.values() if not method.ours]
    assert set(table4.PRINTED) == {(label, size) for label in five for size in sizes}
    for table in (table5.Table5, table6.Table6):
        assert {label for label, _ in table.printed} < set(table5.two_networks())
        assert len(table.printed) == 2 * (2 * 5 + 1)


@pytest.mark.parametrize(
    ("cell", "rate", "best", "mean"),
    [
        (("SVD", 4), 46.7, 4.59, "4.54 ± 0.08"),
        (("PI", 8), 6.7, 6.28, None),
        (("SVD-Clip", 8), 100, 4.66, "4.77 ± 0.66"),
        (("SVD-PI", 64), 100, 4.44, "4.59 ± 0.09"),
        (("SVD-Taylor", 64), 100, 4.40, "4.50 ± 0.08"),
        (("SVD", 64), 0, None, None),
    ],
)
def test_cells_of_table_4_as_printed(cell, rate, best, mean):
    printed = table4.PRINTED[cell]
    assert (printed.rate, printed.best, printed.mean) == (rate, best, mean)


def test_the_settings_of_table_3():
    assert {(eps, degree) for eps, degree, *_ in table3.SETTINGS.values()} == {(1e-4, 19), (1e-2, 19), (1e-2, 9)}


# Statistics over trials -----------------------------------------------------------------------------------------------


def result(error=None, seed=0, step=None, **more):
    failure = (
        None if error is not None else Failure(step, 1, "non-finite gradient", "conv1", "the gradient is not finite")
    )
    return Result(
        Config(seed=seed),
        "succeeded" if failure is None else "failed",
        failure,
        {"train_error": [0.5, 0.25 + 0.01 * seed], "test_error": [0.6, error]} if failure is None else {},
        best_error=error,
        seed=seed,
        **more,
    )


def test_trials_count_and_average_what_succeeded():
    trials = Trials.of([result(0.10), result(0.12, 1), result(step=7), result(0.17, 2), result(step=3)])
    assert (trials.count, trials.succeeded, trials.success_rate) == (5, 3, 60)
    assert trials.best == pytest.approx(10)
    assert trials.mean == pytest.approx(13)
    assert trials.deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert trials.standard_error == pytest.approx(trials.deviation / math.sqrt(3))
    assert trials.mean_text() == "13.00 ± 3.61"
    assert trials.rate_text() == "60 % (3 of 5)"
    assert trials.failures_text() == "2 × non-finite gradient (first at step 3)"
    assert trials.curve("train_error") == pytest.approx([0.5, 0.26])
    assert trials.error_by_seed == pytest.approx({0: 10, 1: 12, 2: 17})
    assert trials.area_by_seed == pytest.approx({0: 37.5, 1: 38, 2: 38.5})
    assert Trials.of([result(0.7)]).rises_by_seed == pytest.approx({0: 10})


def test_trials_without_success_have_no_error():
    trials = Trials.of([result(step=1)])
    assert (trials.success_rate, trials.best, trials.mean, trials.mean_text()) == (0, None, None, None)
    assert Trials(()).rate_text() is None
    assert Trials.of([result(0.2)]).mean_text() == "20.00"


@pytest.mark.parametrize("name", TRAINED)
def test_every_table_copes_with_runs_that_failed(name, tmp_path):
    """Every cell of an experiment: first all runs failed, then one of two succeeded."""
    experiment, context = TRAINED[name], Context(tmp_path, trials=2)
    grid, chosen = experiment.grid("smoke", context), experiment.preset("smoke", context)
    curves = {"train_error": [0.5, 0.4], "test_error": [0.6, 0.5], "seconds": [1.0, 2.0]}
    lucky = Result(Config(seed=1), "succeeded", None, curves, best_error=0.5, seconds_per_step=0.1)
    for results in ([result(step=5), result(step=6)], [result(step=5), lucky]):
        cells = {(method, point.get("group_size")): Trials.of(results) for method, point, _ in grid.cells()}
        outcome = experiment.evaluate("smoke", chosen, cells, tmp_path)
        outcome.write(tmp_path)
        assert outcome.tables
        assert all(table.conditions["scale"] == "smoke" and "trials" in table.conditions for table in outcome.tables)
        assert "non-finite" in outcome.markdown() or name in ("fig5", "fig6", "convergence")


def test_the_interval_of_a_median_holds_it_in_95_of_100_samples():
    samples = np.random.default_rng(0).random((1000, 15)) ** 2  # skew, with median 1/4
    intervals = [median_interval(sample) for sample in samples.tolist()]
    held = sum(lower <= 0.25 <= upper for lower, upper in intervals)
    assert 950 <= held < 980  # between ranks 4 and 12 of 15 it is 96.5 %
    assert median_interval([1.0] * 5) == (-math.inf, math.inf)
    assert median_interval([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]) == (1.0, 6.0)


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(0.96, 1.04), (1.0, 1.0)], "confirmed"),
        ([(0.96, 1.06), (1.0, 1.0)], "undecided"),
        ([(-math.inf, math.inf)], "undecided"),
        ([(1.06, 1.1), (0.9, 1.1)], "refuted"),
        ([(0.8, 0.94)], "refuted"),
    ],
)
def test_a_claim_on_a_range_holds_if_all_of_every_interval_does(intervals, verdict):
    assert within(intervals, 0.95, 1.05) == verdict


# Experiments that decide claims ---------------------------------------------------------------------------------------


def test_the_design_of_the_deciding_experiments(tmp_path):
    def sizes(name):
        configs = find(name).configs("paper", Context(tmp_path))
        return {c.group_size for c in configs if c.norm == "dbn"}, {c.seed for c in configs}, configs[0].epochs

    assert sizes("errors") == ({4, 8, 16, 32, 64}, set(range(100)), 12)
    assert sizes("settings") == ({64}, set(range(75)), 12)
    assert keys("convergence", "paper", tmp_path) < keys("errors", "paper", tmp_path)
    assert keys("settings", "small", tmp_path, trials=1) & keys("errors", "small", tmp_path, trials=1)
    chosen = find("fidelity").size("paper", Context(tmp_path))
    assert (chosen.group_sizes, chosen.eps, chosen.seeds, chosen.steps, chosen.every) == (
        *((4, 8, 16, 32, 64), (1e-2, 1e-4), 5, 575, 10),
    )
    free = find("free_runs").preset("paper", Context(tmp_path))
    assert (free.trials, free.steps) == (10, 19_950)
    chosen = find("survival").size("paper", Context(tmp_path))
    assert (len(chosen.group_sizes) * chosen.seeds, chosen.steps, len(chosen.eps)) == (25, 20_000, 3)


@pytest.mark.parametrize("name", ["fidelity", "survival"])
def test_sizes_can_be_chosen_and_those_that_cannot_be_are_refused(name, tmp_path):
    experiment = find(name)
    plan = experiment.plan("small", Context(tmp_path, trials=2, steps=7, group_sizes=(8,)))
    assert "trainings of 7 steps" in plan.steps[0]
    with pytest.raises(ValueError, match="group size 5 does not divide"):
        experiment.plan("small", Context(tmp_path, group_sizes=(5,)))


def test_fidelity_goes_on_where_it_was_and_says_what_taylor_costs(tmp_path):
    experiment, context = find("fidelity"), Context(tmp_path, steps=2, group_sizes=(4,), jobs=1)
    outcome = experiment.run("smoke", context)
    files = sorted((tmp_path / "fidelity" / "smoke" / "trajectories").iterdir())
    written = {path: path.stat().st_mtime_ns for path in files}
    assert len(files) == 2  # two ε, one seed
    again = experiment.run("smoke", replace(context, trials=2))
    assert {path: path.stat().st_mtime_ns for path in files} == written
    assert again.conditions["trainings"].startswith("4 of 2 steps")
    first = outcome.findings[0]
    assert first.label.startswith("undecided: needs ")  # two trainings
    assert first.effect.startswith("SVD-Taylor loses ")
    assert "share of λ₁" in outcome.markdown()
    files[0].write_text("{")
    with pytest.raises(ValueError, match=r"is damaged .*; delete it"):
        experiment.run("smoke", context)


def test_survival_counts_failures_and_extrapolates_them(tmp_path):
    outcome = find("survival").run("smoke", Context(tmp_path, steps=4, group_sizes=(16,), jobs=1))
    hazards, matrices = outcome.tables
    rows = [dict(zip(matrices.columns, row, strict=True)) for row in matrices.rows]
    plain = [row for row in rows if row["method"] == "SVD"]
    assert {row["matrices"] for row in plain} == {2}
    assert sum(row["not finite"] for row in plain) > 0  # the first layer of the digits has ties
    exact = [row for row in rows if row["method"] == "Exact (ours)"]
    assert sum(row["not finite"] + row["wrong"] for row in exact) == 0
    assert hazards.columns[-1] == "would fail within 136,850 steps"
    claim = next(f for f in outcome.findings if "plain SVD" in f.claim)
    assert claim.verdict == "undecided"  # one training is no five


def test_recorded_runs_are_judged_again_without_training(tmp_path):
    experiment, context = find("table3"), Context(tmp_path, from_records=True)
    folder = context.directory("table3", "smoke")
    with pytest.raises(FileNotFoundError, match="no runs are recorded"):
        experiment.run("smoke", context)
    rows = [
        {"method": name, "d": 64, **record(result(0.2 + 0.01 * seed, seed))}
        for name in table3.SETTINGS
        for seed in range(7)
    ]
    write_records(folder, rows)
    outcome = experiment.run("smoke", context)
    assert outcome.conditions["trials"] == "7"
    assert {f.verdict for f in outcome.findings if "smaller error" in f.claim} == {"equivalent"}  # they are the same
    write_records(folder, [*rows, {**rows[0], "method": "SVD-PI, all pairs"}])
    with pytest.raises(ValueError, match="has runs of SVD-PI, all pairs; expected runs of ε = 1e-4"):
        experiment.run("smoke", context)
    with pytest.raises(ValueError, match="not recorded with their curves"):
        find("errors").run("smoke", context)
    write_records(folder, [{"method": "x", "d": 1}])
    with pytest.raises(ValueError, match="a recorded run is damaged"):
        experiment.run("smoke", context)
