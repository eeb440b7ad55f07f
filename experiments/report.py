"""Writes the report of a comparison again: one HTML file that needs nothing else.

    python -m experiments.report
    python -m experiments.report --workdir=runs/joined

writes report.html with its figures and tables into the folder that `experiments.compare` filled.

    python -m experiments.report --sizes=runs/a,runs/b,runs/c --workdir=runs/sizes

writes differences-by-size.png and .csv: each scheme's difference to the reference against the
number of parameters, from comparisons that differ in the size of their models.
"""

from pathlib import Path

from absl import flags

from experiments.running import launch

WORKDIR = flags.DEFINE_string("workdir", "runs/compare", "folder that a comparison filled")
SIZES = flags.DEFINE_list("sizes", [], "folders of comparisons of several sizes, for one figure")


def main() -> None:
    """Builds the report of --workdir, or the figure of --sizes there."""
    from experiments.reporting import comparison_report, plotting, size_figure

    workdir = Path(WORKDIR.value)
    if SIZES.value:
        drawing = size_figure.draw([Path(folder) for folder in SIZES.value])
        plotting.write(drawing, workdir)
        print(workdir / f"{drawing.stem}.png")
        return
    path = comparison_report.build(workdir)
    launch.show(comparison_report.summary(workdir))
    print(path)


if __name__ == "__main__":
    launch.run_flags(main)
