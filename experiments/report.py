"""Writes the report of a comparison again: one HTML file that needs nothing else.

    python -m experiments.report
    python -m experiments.report --workdir=runs/joined

writes report.html with its figures and tables into the folder that `experiments.compare` filled.
"""

from pathlib import Path

from absl import flags

from experiments.running import launch

WORKDIR = flags.DEFINE_string("workdir", "runs/compare", "folder that a comparison filled")


def main() -> None:
    """Builds the report of --workdir."""
    from experiments.reporting import comparison_report

    workdir = Path(WORKDIR.value)
    path = comparison_report.build(workdir)
    launch.show(comparison_report.summary(workdir))
    print(path)


if __name__ == "__main__":
    launch.run_flags(main)
