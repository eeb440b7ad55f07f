"""Checkpoints: state, data iterator and the config they belong to, in one orbax composite.

A data iterator's state is a few indices, meaningful only for the same corpus, batch and seed, so
the configuration is saved with it and compared before anything is restored. A checkpoint is
complete once its manifest is written, after orbax has finished: a process may be killed at any
moment, and earlier checkpoints stay intact.
"""

import contextlib
import dataclasses
import json
import logging as std_logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from pe_jax.training import manifest
from pe_jax.training.config import Config
from pe_jax.training.paths import is_bucket, remove
from pe_jax.validation import ConfigError

if TYPE_CHECKING:  # saved with a state, not needed to read one
    import grain

# Fields that a resumed run must share; steps, logging, mesh and evaluation may differ.
BINDING = ("seed", "data", "tokenizer", "length", "positions", "batch", "model")
BINDING += ("optimizer", "corpus", "tokens", "weights", "code")
DIGESTS = {"data": "corpus", "tokenizer": "tokens"}  # where a file lies → what it holds
# orbax 0.12.8 numbers saves per process: of two concurrent saves, one looks for its folder before
# it exists.
SAVE_LOCK = threading.Lock()
TEMPORARY = ".orbax-checkpoint-tmp"  # in the names of folders that are not checkpoints
KEPT = 2  # the last, and one to fall back to if it is damaged


class Checkpoints:
    """The last two checkpoints of one run, under `folder`.

    Args:
      folder: used for nothing else.
      read_only: changes no file; a run may be writing there.
    """

    def __init__(self, folder: Path, read_only: bool = False):
        self.folder = folder if is_bucket(folder) else folder.absolute()
        self.checked: set[int] = set()
        writes = not read_only
        options = ocp.CheckpointManagerOptions(create=writes, cleanup_tmp_directories=writes)
        self.manager = ocp.CheckpointManager(self.folder, options=options)
        for step in set(self.manager.all_steps()) - set(self.steps()):
            logging.warning("%s has no %s: incomplete, ignored", self.path(step), manifest.NAME)

    def path(self, step: int) -> Path:
        """The folder of a step."""
        return self.folder / str(step)

    def steps(self) -> list[int]:
        """The steps with a complete checkpoint, ascending."""
        names = (path.parent.name for path in self.folder.glob(f"*/{manifest.NAME}"))
        return sorted(int(name) for name in names if name.isdecimal())

    def latest(self) -> int | None:
        """The last step with a complete checkpoint, or None."""
        return max(self.steps(), default=None)

    def save(self, step: int, state: Any, data: "grain.DatasetIterator", meta: dict) -> None:
        """Saves and waits until it is on disk (an exit right after would lose it otherwise).

        Raises:
          OSError: it cannot be written; the message gives its size. Earlier checkpoints stay, this
            one is removed.
        """
        import grain

        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            data=grain.checkpoint.CheckpointSave(data),
            meta=ocp.args.JsonSave(meta),
        )
        with SAVE_LOCK, self._all_or_nothing(step, state), _silent_threads():
            if _bytes(state) / jax.process_count() > self._free():
                raise OSError("no space left on the disk; free some, or choose another workdir")
            if step in self.manager.all_steps():  # killed before its manifest was written
                self.manager.delete(step)
            self.manager.save(step, args=items, force=True)
            self.manager.wait_until_finished()
            if jax.process_index() == 0:
                manifest.write(self.path(step))
        for old in self.steps()[:-KEPT] if jax.process_index() == 0 else ():
            if is_bucket(self.folder):
                (self.path(old) / manifest.NAME).unlink()  # it is incomplete from here on
                remove(self.path(old))
                continue
            # Atomic: orbax takes the new name for a temporary folder, removed at the next start.
            shutil.rmtree(self.path(old).rename(self.folder / f"{old}{TEMPORARY}"))

    @contextlib.contextmanager
    def _all_or_nothing(self, step: int, state: Any) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax and tensorstore each raise their own
            for _ in range(5):  # writes of tensorstore outlive the error, and make a folder again
                for path in (self.path(step), *self.folder.glob(f"{step}{TEMPORARY}*")):
                    remove(path)
                time.sleep(0.1)
            free = f"{self._free():,}" if self._free() != math.inf else "any number of"
            reason = str(error).strip().partition("\n")[0]
            reason = reason if len(reason) <= 160 else f"{reason[:60]} … {reason[-90:]}"
            raise OSError(
                f"step {step} was not saved in {self.folder}: {reason} (it takes about"
                f" {_bytes(state):,} bytes, {free} are free); the last good step is"
                f" {self._last_good(step)}"
            ) from error

    def _free(self) -> float:
        """Bytes that are free where the folder is."""
        return math.inf if is_bucket(self.folder) else shutil.disk_usage(self.folder).free

    def _last_good(self, before: int) -> int | None:
        """The last earlier step whose files match their manifest."""
        for step in reversed([s for s in self.steps() if s < before]):
            try:
                manifest.check(self.path(step))
            except ValueError:
                continue
            return step
        return None

    def meta(self, step: int) -> dict:
        """The metadata saved with the state; raises as `check` does."""
        self.check(step)
        args = ocp.args.Composite(meta=ocp.args.JsonRestore())
        return self.manager.restore(step, args=args)["meta"]

    def check(self, step: int) -> None:
        """Raises ConfigError unless the files of a step are those that were saved.

        The message names the file and the last good step. Each process checks its part of the
        files, once.
        """
        if step in self.checked:
            return
        try:
            manifest.check(self.path(step), jax.process_index(), jax.process_count())
        except ValueError as error:
            good, fix = self._last_good(step), "use a new workdir"
            if good is not None:
                fix = f"to continue there, remove {self.path(step)}"
            raise ConfigError(
                f"checkpoint {step} is damaged: {error}; the last good step is {good}; {fix}"
            ) from None
        self.checked.add(step)

    def restore(
        self, step: int, like: Any, data: "grain.DatasetIterator | None", meta: dict | None
    ) -> Any:
        """The state of a step with the shardings of `like`; advances `data` to that step.

        Args:
          step: one of `steps()`.
          like: shapes, dtypes and shardings; any mesh.
          data: the iterator of the same data; None to restore only the state.
          meta: of the run that continues; None accepts any run.

        Raises:
          ConfigError: a file is damaged, or the checkpoint is of a run with another configuration,
            naming the difference; a parameter is missing, or has another shape or dtype.
        """
        saved = self.meta(step)
        if meta is not None:
            check_same(saved, meta)
            if saved.get("devices") != meta.get("devices"):
                logging.warning(
                    "The checkpoint was made on %s, this is %s: it is restored exactly, but further"
                    " steps are not bitwise those of the other mesh.",
                    *(x.get("devices") for x in (saved, meta)),
                )
        self._check_arrays(step, like)
        items: dict = {"state": ocp.args.StandardRestore(like)}
        if data is not None:
            import grain

            items["data"] = grain.checkpoint.CheckpointRestore(data)
        return self.manager.restore(step, args=ocp.args.Composite(**items))["state"]

    def _check_arrays(self, step: int, like: Any) -> None:
        """Raises ConfigError for the first array that is missing or of another shape or dtype."""
        path: Any = self.path(step) / "state"
        tree = ocp.StandardCheckpointHandler().metadata(path).tree
        saved, now = (
            {
                jax.tree_util.keystr(path, simple=True, separator="/"): f"{x.dtype}{list(x.shape)}"
                for path, x in jax.tree.leaves_with_path(arrays)
            }
            for arrays in (tree, like)
        )
        # a parameter before its moments in the optimizer
        for name in sorted({*saved, *now}, key=lambda name: (not name.startswith("params/"), name)):
            if saved.get(name) != now.get(name):
                raise ConfigError(
                    f"{self.path(step)}: {name} is {saved.get(name, 'missing')} there, and"
                    f" {now.get(name, 'missing')} in this model: its code has changed since;"
                    " restore that code, or use a new workdir"
                )

    def close(self) -> None:
        """Waits for and releases orbax's threads."""
        self.manager.close()


def _bytes(state: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(state))


@contextlib.contextmanager
def _silent_threads() -> Iterator[None]:
    """Keeps orbax's threads from printing a traceback each: the error is raised once."""

    def is_not_of_orbax(record: std_logging.LogRecord) -> bool:
        return not (record.exc_info and "orbax" in Path(record.pathname).parts)

    def hook(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):  # a late write of tensorstore
            previous_hook(unraisable)

    previous_hook, sys.unraisablehook = sys.unraisablehook, hook
    logger = logging.get_absl_logger()
    logger.addFilter(is_not_of_orbax)
    try:
        yield
    finally:
        logger.removeFilter(is_not_of_orbax)
        sys.unraisablehook = previous_hook


def flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """A nested configuration as dotted names and values."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [pair for k, v in value.items() for pair in flat(v, f"{prefix}.{k}" if prefix else k)]


DEFAULTS = dict(flat(json.loads(json.dumps(dataclasses.asdict(Config())))))  # as files have them


def difference(
    saved: dict, now: dict, fields: Iterable[str] = BINDING, may_differ: Container[str] = ()
) -> tuple[str, Any, Any] | None:
    """The first difference between two configurations: its dotted name and both values; or None.

    The same text or tokenizer may lie elsewhere: their digests are compared. A field of `Config`
    that one side lacks, as it was added since, has its default there. Of `code`, digests of the
    user's files by name, those are compared that both sides have: encodings may be added.

    Args:
      saved: fields by name, nested.
      now: of the other.
      fields: which to compare.
      may_differ: dotted names that are not compared.
    """
    for field in fields:
        digest = DIGESTS.get(field)
        if saved.get(digest) is not None and saved.get(digest) == now.get(digest):
            continue
        old, new = saved.get(field), now.get(field)
        if field == "code":
            both = {*(old or {})} & {*(new or {})}
            old, new = ({name: side[name] for name in both} for side in (old or {}, new or {}))
        nested = isinstance(old, dict) and isinstance(new, dict)
        olds, news = (dict(flat(x, field)) if nested else {field: x} for x in (old, new))
        for name in {**olds, **news}:
            old, new = (x.get(name, DEFAULTS.get(name)) for x in (olds, news))
            if name not in may_differ and old != new:
                return name, old, new
    return None


def check_same(saved: dict, now: dict, fields: Iterable[str] = BINDING) -> None:
    """Raises ConfigError where a field that a resumed run must share differs, as `difference`."""
    if found := difference(saved, now, fields):
        name, old, new = found
        if name.startswith("code."):
            raise ConfigError(
                f"{name.removeprefix('code.')} changed since the first results here, which would be"
                " mixed with those of the other code; restore it, or use a new workdir"
            )
        raise ConfigError(
            f"{name}={new!r}: the checkpoint was made with {old!r}; use that, or a new workdir"
        )


def abstract(state: Any, shardings: Any) -> Any:
    """Shapes, dtypes and shardings of a state, without arrays."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
    )
