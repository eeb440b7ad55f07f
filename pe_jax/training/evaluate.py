"""Losses by context length, by two protocols, on the same target tokens for every scheme.

A window of text holds M tokens of history and then M targets (M the longest length, EVIDENCE:
Press et al., arXiv 2108.12409, §2 and appendix B):

* non-overlapping: the targets are cut into pieces of the context length, each read from its start,
  so early tokens of a piece have little to look at;
* sliding: the context moves `stride` tokens at a time and only the last `stride` targets of each
  step count, so each target sees all but `stride` tokens of the length.

W windows, M longest length, n context length, s stride.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pe_jax import position_schemes
from pe_jax.training import data, tasks
from pe_jax.training.config import PROTOCOLS, EvalConfig
from pe_jax.training.step import Trainer, token_losses


def windows(corpus: Any, tokenizer: Any, config: EvalConfig) -> np.ndarray:
    """Text to evaluate on: int32 [W, 2M + 1], each row inside one document."""
    size = 2 * config.lengths[-1] + 1
    return data.eval_windows(
        corpus, tokenizer, split=config.split, count=config.windows, length=size
    )


def pieces(text: np.ndarray, length: int, protocol: str, stride: int) -> np.ndarray:
    """The sequences to run, targets included: int32 [W · M/n, n + 1], or [W · M/s, n + 1]."""
    longest = (text.shape[1] - 1) // 2
    if protocol == "non-overlapping":
        ends = np.arange(longest + length, 2 * longest + 1, length)
    else:
        ends = np.arange(longest + stride, 2 * longest + 1, stride)
    columns = ends[:, None] - length + np.arange(length + 1)
    return text[:, columns].reshape(-1, length + 1)


class Evaluator:
    """Compiled token losses of one model; one program a length serves both protocols."""

    def __init__(self, trainer: Trainer, config: EvalConfig):
        self.trainer, self.config = trainer, config
        whole = NamedSharding(trainer.mesh, PartitionSpec())

        def losses(params, tokens, block):
            key, read = jax.random.fold_in(jax.random.key(0), block), tokens[:, :-1]
            places = trainer.position_scheme.test_positions(key, read, jnp.zeros_like(read))
            model, layout = trainer.model(params).at_length(read.shape[1]), trainer.layout
            places = None if places is None else layout.spread(places)
            with trainer.in_force():
                logits: Any = model(layout.spread(read), positions=places, layout=layout)
            targets = layout.spread(tokens[:, 1:])
            right = logits.argmax(-1) == targets
            return jax.tree.map(layout.restore, (token_losses(logits, targets), right))

        shardings = (trainer.shardings.params, trainer.batch_sharding, whole)
        self.losses = jax.jit(losses, in_shardings=shardings, out_shardings=whole)

    def rows(self, length: int) -> int:
        """How many rows of a length are computed at a time, however few there are."""
        parts = self.trainer.mesh.shape["data"] * self.trainer.mesh.shape["fsdp"]
        return max(1, self.config.batch_tokens // length // parts) * parts

    def run(self, params: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss of each target (nats), and whether it was the likeliest: [R, n] for rows [R, n + 1].

        Rows go in batches of one size, so that a length has one program.
        """
        length = rows.shape[1] - 1
        size = self.rows(length)
        filler = np.repeat(rows[-1:], -len(rows) % size, axis=0)
        blocks = np.concatenate([rows, filler]).reshape(-1, size, length + 1)
        place = self.trainer.batch_sharding  # all processes have all rows
        blocks = [jax.make_array_from_process_local_data(place, b, b.shape) for b in blocks]
        found = [self.losses(params, block, np.int32(n)) for n, block in enumerate(blocks)]
        losses, right = (np.concatenate([np.asarray(x) for x in part]) for part in zip(*found))  # noqa: B905
        return losses[: len(rows)], right[: len(rows)]

    def defined(self, length: int) -> bool:
        """Whether so many tokens have positions, and the encodings define them."""
        limit = position_schemes.position_limit(self.trainer.config.pattern)
        return self.trainer.position_scheme.fits(length, limit, testing=True)

    def by_length(self, params: Any, text: np.ndarray) -> dict:
        """Mean loss of each window by protocol and length, and by position at the longest length.

        Returns:
          {"losses": {protocol: {str(n): [W floats]}}, "by_position": {"length", "loss"}}; None
          where the encoding is not defined at that length (a learned table that is too short), or
          no positions are (`randomized` with a smaller maximum).
        """
        longest, count = self.config.lengths[-1], len(text)
        found: dict = {protocol: {} for protocol in PROTOCOLS}
        by_position = {"length": longest, "loss": None}
        for length in self.config.lengths:
            for protocol in PROTOCOLS:
                if not self.defined(length):
                    found[protocol][str(length)] = None
                    continue
                stride = self.config.stride
                losses, _ = self.run(params, pieces(text, length, protocol, stride))
                if protocol == "sliding":
                    losses = losses[:, -stride:]
                elif length == longest:
                    by_position["loss"] = losses.mean(0).tolist()
                found[protocol][str(length)] = losses.reshape(count, -1).mean(1).tolist()
        return {"losses": found, "by_position": by_position}

    def answers(self, params: Any, task: tasks.Task, length: int, seed: int = 0):
        """Of questions whose rows fill a length: mean loss of each answer, whether all is right."""
        rows = tasks.examples(task, self.config.windows, task.fitting(length + 1), seed)
        losses, right = self.run(params, rows["tokens"])
        weights = rows["weights"][:, 1:]
        return (losses * weights).sum(1) / weights.sum(1), (right | (weights == 0)).all(1)

    def by_task_length(self, params: Any, task: tasks.Task, seed: int = 0) -> dict:
        """As `by_length`, for the answers of a task whose rows fill each length.

        A task has no text to slide over: only "non-overlapping" has numbers. "exact" adds the part
        of answers that are right in every token. A length that no question fills is None.
        """
        found: dict = {protocol: {} for protocol in PROTOCOLS}
        exact: dict = {}
        for length in self.config.lengths:
            key = str(length)
            found["sliding"][key] = found["non-overlapping"][key] = exact[key] = None
            if not self.defined(length) or not task.fills(length + 1):
                continue
            losses, right = self.answers(params, task, length, seed)
            found["non-overlapping"][key], exact[key] = losses.tolist(), float(right.mean())
        by_position = {"length": self.config.lengths[-1], "loss": None}
        return {"losses": found, "by_position": by_position, "exact": exact}
