"""Writes docs/performance.md and its figures from what `experiments.benchmark` measured.

    python -m tools.performance_docs --runs=runs/benchmark

One section per folder in --runs. Text of the page outside the two marks is kept.
"""

import shlex
import sys

from absl import app, flags

from experiments.reporting.benchmark_report import write
from experiments.running.errors import one_line_errors
from pe_jax.training.paths import local


def main(_: list[str]) -> None:
    """Writes the page."""
    command = shlex.join(["python", "-m", "tools.performance_docs", *sys.argv[1:]])
    with one_line_errors():
        runs = [local("runs", folder) for folder in flags.FLAGS.runs]
        page = write(runs, local("docs", flags.FLAGS.docs), command)
    print(f"Page: {page}")


if __name__ == "__main__":
    flags.DEFINE_list("runs", ["runs/benchmark"], "folders that experiments.benchmark filled")
    flags.DEFINE_string("docs", "docs", "folder of the page")
    app.run(main)
