"""Checkpoints: state, data iterator and what they belong to, in one orbax composite.

A data iterator's state is a few indices, meaningful only for the same corpus, batch and seed, so
the configuration is saved beside it and compared before anything is restored.
"""

import threading
from pathlib import Path
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp

# Changing these changes what a step means; steps, logging, mesh and evaluation may differ.
BINDING = ("seed", "data", "tokenizer", "length", "positions", "batch", "model")
BINDING += ("optimizer", "corpus")
# orbax 0.12.8 numbers saves for the whole process: of two at once, one looks for its folder before
# it is made.
ONE_AT_A_TIME = threading.Lock()


class Checkpoints:
    """The checkpoints of one run, under `folder`; the latest one is kept."""

    def __init__(self, folder: Path):
        options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True)
        self.manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def latest(self) -> int | None:
        """The last step that was saved whole, or None."""
        return self.manager.latest_step()

    def save(self, step: int, state: Any, data: grain.DatasetIterator, meta: dict) -> None:
        """Saves and waits until it is on disk (an exit right after would lose it)."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            data=grain.checkpoint.CheckpointSave(data),
            meta=ocp.args.JsonSave(meta),
        )
        with ONE_AT_A_TIME:
            self.manager.save(step, args=items, force=True)
            self.manager.wait_until_finished()

    def meta(self, step: int) -> dict:
        """What was saved beside the state."""
        args = ocp.args.Composite(meta=ocp.args.JsonRestore())
        return self.manager.restore(step, args=args)["meta"]

    def restore(self, step: int, like: Any, data: grain.DatasetIterator | None, meta: dict) -> Any:
        """The state of a step, laid out as `like` (arrays with shardings); advances `data` to it.

        Raises:
          ValueError: it was saved by a run whose steps mean something else, naming the difference.
        """
        saved = self.meta(step)
        check_same(saved, meta)
        items: dict = {"state": ocp.args.StandardRestore(like)}
        if data is not None:
            items["data"] = grain.checkpoint.CheckpointRestore(data)
        return self.manager.restore(step, args=ocp.args.Composite(**items))["state"]

    def close(self) -> None:
        """Waits for and releases orbax's threads."""
        self.manager.close()


def check_same(saved: dict, now: dict, fields: tuple[str, ...] = BINDING) -> None:
    """Raises ValueError where a field that a resumed run must share differs."""
    for field in fields:
        if saved.get(field) != now.get(field):
            old, new = saved.get(field), now.get(field)
            if isinstance(old, dict) and isinstance(new, dict):
                name = next(k for k in {**old, **new} if old.get(k) != new.get(k))
                field, old, new = f"{field}.{name}", old.get(name), new.get(name)
            raise ValueError(
                f"{field}={new!r}: the checkpoint was made with {old!r}; use that, or a new workdir"
            )


def abstract(state: Any, shardings: Any) -> Any:
    """Shapes, dtypes and shardings of a state, without its memory."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings
    )
