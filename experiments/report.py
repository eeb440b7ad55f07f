"""Writes the report of a comparison again: one HTML file that needs nothing else.

    python -m experiments.report --workdir=runs/compare

writes report.html with its figures and tables into the directory that `experiments.compare` filled.
"""

from pathlib import Path

from absl import app, flags

from experiments.reporting import comparison_report
from experiments.running import launch


def main(argv: list[str]) -> None:
    """Builds the report of --workdir."""
    del argv
    workdir = Path(flags.FLAGS.workdir)
    try:
        path = comparison_report.build(workdir)
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"report: {error}") from None
    launch.show(comparison_report.summary(workdir))
    print(path)


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "the directory that a comparison filled", required=True)
    app.run(main)
