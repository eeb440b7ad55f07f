"""A list of work, as programs make it and the driver runs it: runs that follow each other.

`Work` is a generator: it yields a `Run` and gets its result back, a saved one or a new one. What is
trained and in which order can be read there from top to bottom.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jax.sharding import Mesh

from experiments.running.process import signals

if TYPE_CHECKING:  # reports read rates without what a training loop needs
    from pe_jax.training.metrics import Progress

FAILED = ".failed"  # instead of the suffix of the result that a run should have written
T = TypeVar("T")


class Worker(NamedTuple):
    """What a run gets.

    Attributes:
      label: of the run, which its reports have.
      mesh: its devices.
      stop: whether a signal came.
      report: shows how far it is.
    """

    label: str
    mesh: Mesh
    stop: signals.Stop
    report: "Callable[[Progress], None]"


class Run(NamedTuple):
    """One training, or one evaluation.

    Attributes:
      label: its name among all runs.
      file: its result, JSON; the run is finished when it is there.
      steps: that it trains; 0 if it is only evaluated.
      train: returns the result, which has a "status"; None if a signal came first.
    """

    label: str
    file: Path
    steps: int
    train: Callable[[Worker], dict | None]


Runs = Generator[Run, dict, T]  # yields runs, gets their results, returns what came of them


class Work(NamedTuple):
    """Runs that follow each other.

    Attributes:
      name: of what they belong to.
      steps: of each run that is known beforehand.
      runs: all of them.
    """

    name: Hashable
    steps: Sequence[int]
    runs: Runs[Any]
