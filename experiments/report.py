"""Writes the report of a comparison again: one HTML file that needs nothing else.

    python -m experiments.report
    python -m experiments.report --join=runs/a,runs/b --workdir=runs/joined

writes report.html with its figures and tables into the folder that `experiments.compare` filled; or
that of several such folders, with other schemes or seeds of one comparison, as one.

    python -m experiments.report --series=runs/a,runs/b,runs/c --workdir=runs/series

writes differences-by-parameters.png and .csv: each scheme's difference to the reference, from
comparisons that differ in the size of their models; or differences-by-steps, if all have one size.
It prints how much a difference changes per doubling, from three comparisons on.
"""

from absl import flags

from experiments.running.command import launch
from pe_jax.training.paths import local

WORKDIR = flags.DEFINE_string("workdir", "runs/compare", "folder that a comparison filled")
JOIN = flags.DEFINE_list("join", [], "folders of comparisons to report as one, in --workdir")
SERIES = flags.DEFINE_list(
    "series", [], "folders of comparisons of several sizes, or numbers of steps, for one figure"
)


def main() -> None:
    """Builds the report of --workdir, or the figure of --series there."""
    from experiments.reporting import plotting, results
    from experiments.reporting.comparison import joined, report, series_figure

    workdir = local("workdir", WORKDIR.value)
    if SERIES.value:
        folders = [local("series", folder) for folder in SERIES.value]
        drawing, slopes = series_figure.draw(folders)
        plotting.write(drawing, workdir)
        if slopes.row_count:
            launch.show(slopes)
        print(workdir / f"{drawing.stem}.png")
        return
    folders = [local("join", folder) for folder in JOIN.value]
    found = joined.read(folders, workdir) if folders else results.read(workdir)
    path = report.build(found)
    launch.show(report.summary(found))
    print(path)


if __name__ == "__main__":
    launch.run_flags(main)
