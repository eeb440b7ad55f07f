"""Programs called in-process as their command lines do."""

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from absl import app, flags

import experiments.compare  # noqa: F401  # defines --last_look
from experiments import extend, train
from experiments.measuring import benchmark_settings
from experiments.running.command import launch
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.released import ReleasedConfig
from experiments.running.configs.tasks import TasksConfig
from experiments.running.process import distributed
from pe_jax.training.config import Config
from tools import compile_tpu

PROGRAMS = Path(launch.__file__).parents[2]
KINDS = {  # program → its configs
    "train": (Config,),
    "compare": (CompareConfig,),
    "tasks": (TasksConfig,),
    "images": (ImagesConfig,),
    "extend": (ExtendConfig, ReleasedConfig),
    "compile_tpu": (Config,),
}


def start(program: str, begin: Callable[[Any], None]) -> None:
    """The command line of a program, up to what it does: `begin` gets its config or settings.

    Programs without either run.
    """
    if program in ("explore", "generate", "inspect", "report"):
        runpy.run_path(str(PROGRAMS / f"{program}.py"), run_name="__main__")
        return
    if program == "benchmark":
        benchmark_settings.define()
        launch.run_flags(lambda: begin(benchmark_settings.settings()))
        return
    if program == "compile_tpu":
        compile_tpu.define_flags()
    if program == "train":
        train.define_flags()
    file = f"configs/{'train' if program == 'compile_tpu' else program}.py"
    file = extend.default_config(sys.argv) if program == "extend" else file
    launch.run(begin, file, *KINDS[program])


@contextlib.contextmanager
def new_flags() -> Iterator[None]:
    """Removes the flags that were defined inside, so that another program can define its own."""
    before = {*flags.FLAGS}
    try:
        yield
    finally:
        for name in {*flags.FLAGS} - before:
            delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()


def status(start: Callable[[], None], *argv: str) -> int | str | None:
    """The exit status of a program: `start` defines its flags and calls `launch`."""
    with pytest.MonkeyPatch.context() as patch, new_flags():
        patch.setattr(app, "run", lambda main, flags_parser: main(flags_parser(sys.argv)))
        patch.setattr(distributed, "connect", lambda *_, **__: None)
        patch.setattr(launch, "quiet_libraries", lambda: None)
        patch.setattr(sys, "argv", ["program", *argv])
        try:
            start()
        except SystemExit as end:
            return end.code
    return None
