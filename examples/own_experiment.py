"""An experiment of your own: which degree of the Taylor expansion is enough?

Declares a grid of runs on the embedded digits, carries it out (resumable: run this file twice), and writes a table, a
figure and a page with the tools that the experiments of the paper use. Needs the extra ``lab``; takes about a minute.
Writes ``out/own_experiment/``.
"""

from __future__ import annotations

from pathlib import Path

from eigengrad.lab.experiments.trials import Trials
from eigengrad.lab.report import Outcome, Table, build_page, figures
from eigengrad.lab.report.outcome import Figure
from eigengrad.lab.sweeps import Grid, sweep
from eigengrad.lab.training import Config

OUT = Path("out/own_experiment")
DEGREES = (0, 1, 3, 9, 19)


def main() -> None:
    """Sweep, table, figure, page."""
    base = Config(stem_width=64, width=16, epochs=5, lr_step=4, group_size=16)
    grid = Grid(base, {"SVD-Taylor": {"gradient": "taylor"}}, {"degree": DEGREES}, seeds=range(3))
    results = {result.config.key(): result for result in sweep(grid.configs(), OUT / "runs", threads=1)}
    trials = {
        point["degree"]: Trials.of([results[config.key()] for config in configs]) for _, point, configs in grid.cells()
    }

    conditions = {"data": "digits", "d": "16", "epochs": "5", "trials": "3"}
    rows = tuple((degree, of.rate_text(), of.mean_text(), of.amplification) for degree, of in trials.items())
    table = Table("degrees", "Test error by degree", ("K", "succeeded", "error %", "largest 1/gap"), rows, conditions)
    folder = OUT / "degrees" / "smoke"
    with figures.style() as plt:
        figure, axes = plt.subplots(figsize=(6, 3.6))
        axes.errorbar(DEGREES, [of.mean for of in trials.values()], [of.deviation for of in trials.values()], fmt="o-")
        axes.set(xlabel="degree K", ylabel="test error, %", title="SVD-Taylor on the digits")
        drawn = Figure(figures.save(figure, folder, "degrees"), "Mean and standard deviation over three seeds.")
    Outcome("degrees", "Which degree is enough?", "smoke", conditions, "uses K = 9.", (table,), (drawn,)).write(folder)
    print(table.markdown())
    print(f"The page: {build_page(OUT).resolve().as_uri()}")


if __name__ == "__main__":
    main()
