"""A list of work, as programs make it and the driver runs it: runs, and what they come to.

`Work` is a generator: it yields runs that need nothing of each other, and gets their results back,
saved or new ones. What is trained and in which order can be read there from top to bottom. It may
be run again from its results, in another process: so what it does between runs follows from these.
"""

import re
import time
import traceback
from collections.abc import Callable, Generator, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from jax.sharding import Mesh

from experiments.running.files.provenance import environment
from experiments.running.process import signals
from pe_jax.validation import ConfigError

if TYPE_CHECKING:  # reports read rates without what a training loop needs
    from pe_jax.training.metrics import Progress

FAILED = ".failed"  # instead of the suffix of the result that a run should have written
TRIES = 3  # of a run, or of a start, whose process is lost
T = TypeVar("T")


class Worker(NamedTuple):
    """What a run gets.

    Reports have its label.
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


def failing(reason: str, worker: Worker) -> NoReturn:
    """Instead of a run's `train`: the run fails, as one that it needs has failed."""
    raise RuntimeError(reason)


# Yields runs that need nothing of each other, gets their results, returns what came of all.
Runs = Generator[Sequence[Run], Sequence[dict], T]


def one_line(error: BaseException) -> str:
    """What an error says, without colours: of a long text, as with a traceback, both ends."""
    said = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    return said if len(said) <= 500 else f"{said[:250]} … {said[-250:]}"


def do(run: Run, worker: Worker) -> dict | None:
    """The result of a run, with how it was made; None if a signal came first.

    A run that fails has the status "failed", a reason and a traceback.

    Raises:
      ConfigError, OSError: as these are not of one run.
    """
    begin = time.monotonic()
    try:
        result = run.train(worker)
    except signals.Stopped:
        return None
    except (ConfigError, OSError):
        raise
    except Exception as error:  # a compiler, an allocator or the code of an encoding
        reason = f"{type(error).__name__}: {one_line(error)}"
        trace = "".join(traceback.format_exception(error))
        return {"status": "failed", "reason": reason, "traceback": trace, **environment()}
    if result is None:
        return None
    return result | {"seconds": time.monotonic() - begin, **environment()}


class Lost(Exception):
    """The process of a run is gone, as with its node; the message is the reason."""


class Work(NamedTuple):
    """Runs that belong together.

    Attributes:
      name: of what they belong to.
      steps: of each run that is known beforehand.
      runs: all of them.
    """

    name: Hashable
    steps: Sequence[int]
    runs: Runs[Any]
