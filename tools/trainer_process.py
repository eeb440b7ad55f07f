"""The trainer in a separate process, as its command line runs it, without the seconds of imports.

A fork server has imported everything, but has no threads and no devices: processes start clean,
get signals, are killed and exit like any other.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from experiments.running.command import launch
from experiments.running.training import training_loop
from pe_jax.training.config import Config

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def start(
    flags: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> BaseProcess:
    """Starts `python -m experiments.train FLAGS`.

    `flags` have a `--config`; output is appended to `log`; `before` is a module function that is
    called first in the process.
    """
    args = list(flags), log, dict(environment or {}), before
    process = CONTEXT.Process(target=_run, args=args, daemon=True)
    process.start()
    return process


def _run(flags: list[str], log: Path, environment: dict, before: Callable | None) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    if before is not None:
        before()
    sys.argv = ["experiments.train", *flags]
    launch.run(training_loop.run, "configs/train.py", Config)
