"""Losses by context length, under two protocols, on the same target tokens for every scheme.

A window of text holds M tokens of history and then M targets, M being the longest length (Press et
al., arXiv 2108.12409, §2 and appendix B):

* non-overlapping: the targets are cut into pieces of the context length, each read from its start,
  so early tokens of a piece have little context;
* sliding: the context moves `stride` tokens at a time and only the last `stride` targets of each
  step count, so each target sees at least length - `stride` tokens.

W windows, M longest length, n context length, s stride.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pe_jax import position_schemes
from pe_jax.training import tasks
from pe_jax.training.config import PROTOCOLS, EvalConfig
from pe_jax.training.step import Trainer, by_chunks, chunk_size, token_losses

AHEAD = 1  # passes that are queued while one runs


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
    """Compiled token losses of one model; one program per length serves both protocols.

    Attributes:
      check: called after each pass; what it raises ends an evaluation.
      begin: the token that every row begins with, in place of its first, which is no target; None
        leaves rows as they are.
    """

    def __init__(self, trainer: Trainer, config: EvalConfig, begin: int | None = None):
        self.trainer, self.config, self.begin = trainer, config, begin
        self.check: Callable[[], None] = lambda: None
        replicated = NamedSharding(trainer.mesh, PartitionSpec())

        def score(logits, targets):
            return token_losses(logits, targets), logits.argmax(-1) == targets

        def positions_of(number, row):  # the same whatever rows are in the pass
            key, rows = jax.random.fold_in(jax.random.key(0), number), row[None]
            drawn = trainer.position_scheme.test_positions(key, rows, jnp.zeros_like(rows))
            return None if drawn is None else drawn[0]

        def losses(params, tokens, first):
            read = tokens[:, :-1]
            positions = jax.vmap(positions_of)(first + jnp.arange(len(read), dtype=jnp.int32), read)
            model, layout = trainer.model(params), trainer.layout
            model = trainer.at_positions(model, positions, read.shape[1], testing=True)
            positions = None if positions is None else layout.spread(positions)
            with trainer.use_mesh():
                x, _ = model.hidden(layout.spread(read), positions=positions, layout=layout)
                size, targets = chunk_size(model, *read.shape), layout.spread(tokens[:, 1:])
                scored = by_chunks(model, score, x, targets, size)
            return jax.tree.map(layout.restore, scored)

        shardings = (trainer.shardings.params, trainer.batch_sharding, replicated)
        self.losses = jax.jit(losses, in_shardings=shardings, out_shardings=replicated)

    def with_config(self, config: EvalConfig) -> Self:
        """An evaluator of other lengths or windows that shares the compiled programs."""
        other = copy.copy(self)
        other.config = config
        return other

    def heeding(self, check: Callable[[], None]) -> Self:
        """An evaluator that calls `check` after each pass, and shares the compiled programs."""
        other = copy.copy(self)
        other.check = check
        return other

    def block(self, rows: int, length: int) -> int:
        """Rows per forward pass: as even as possible, at most `batch_tokens` tokens or one row."""
        shards = self.trainer.mesh.shape["data"] * self.trainer.mesh.shape["fsdp"]
        most = max(1, self.config.batch_tokens // length // shards)  # rows per shard
        passes = math.ceil(rows / (most * shards))
        return shards * math.ceil(rows / (passes * shards))

    def run(
        self, params: Any, rows: np.ndarray, size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Loss of each target (nats), and whether it was the argmax: [R, n] for rows [R, n + 1].

        All passes have the same number of rows, `size` or `block(R, n)`, so that one program serves
        them all; the last one is padded.
        """
        length = rows.shape[1] - 1
        if self.begin is not None:
            rows = np.concatenate([np.full_like(rows[:, :1], self.begin), rows[:, 1:]], axis=1)
        size = size or self.block(len(rows), length)
        padding = np.repeat(rows[-1:], -len(rows) % size, axis=0)
        blocks = np.concatenate([rows, padding]).reshape(-1, size, length + 1)
        sharding = self.trainer.batch_sharding  # all processes have all rows
        blocks = [jax.make_array_from_process_local_data(sharding, b, b.shape) for b in blocks]
        outputs = []
        for n, x in enumerate(blocks):
            outputs.append(self.losses(params, x, np.int32(n * size)))
            jax.block_until_ready(outputs[max(0, n - AHEAD)])  # else all passes are queued
            self.check()
        losses, correct = (
            np.concatenate([np.asarray(x) for x in arrays]) for arrays in zip(*outputs, strict=True)
        )
        return losses[: len(rows)], correct[: len(rows)]

    def defined(self, length: int) -> bool:
        """Whether `length` tokens have positions that all encodings define."""
        limit = position_schemes.position_limit(self.trainer.config.pattern)
        return self.trainer.position_scheme.fits(length, limit, testing=True)

    def by_length(self, params: Any, text: np.ndarray) -> dict:
        """Mean loss of each window by protocol and length, and by position at the longest length.

        Returns:
          {"losses": {protocol: {str(n): [W floats]}}, "by_position": {"length", "loss"}}; None
          where the encoding is not defined at that length (a learned table that is too short), or
          no positions are (`randomized` with a smaller maximum).
        """
        longest, stride = self.config.lengths[-1], self.config.stride
        losses: dict = {protocol: {} for protocol in PROTOCOLS}
        by_position = {"length": longest, "loss": None}
        for length in self.config.lengths:
            if not self.defined(length):
                for protocol in PROTOCOLS:
                    losses[protocol][str(length)] = None
                continue
            separate, sliding = (pieces(text, length, p, stride) for p in PROTOCOLS)
            size = self.block(len(separate), length)  # the sliding rows are a multiple of these
            per_target, _ = self.run(params, separate, size)
            if length == longest:
                by_position["loss"] = per_target.mean(0).tolist()
            last = per_target  # of the sliding window; with this stride the two are the same
            if stride < length:
                last = self.run(params, sliding, size)[0][:, -stride:]
            for protocol, values in zip(PROTOCOLS, (per_target, last), strict=True):
                losses[protocol][str(length)] = values.reshape(len(text), -1).mean(1).tolist()
        return {"losses": losses, "by_position": by_position}

    def answers(self, params: Any, task: tasks.Task, length: int, seed: int = 0):
        """Mean loss of each answer and whether all its tokens are right, for rows of a length."""
        rows = tasks.examples(task, self.config.windows, task.fitting(length + 1), seed)
        losses, correct = self.run(params, rows["tokens"])
        weights = rows["weights"][:, 1:]
        return (losses * weights).sum(1) / weights.sum(1), (correct | (weights == 0)).all(1)

    def by_task_length(self, params: Any, task: tasks.Task, seed: int = 0) -> dict:
        """The same as `by_length` for the answers of a task whose rows fill each length.

        A task has no text to slide over: only "non-overlapping" has numbers. "exact" adds the
        fraction of answers that are right in every token. A length that no question fills is None.
        """
        by_protocol: dict = {protocol: {} for protocol in PROTOCOLS}
        exact: dict = {}
        for length in self.config.lengths:
            key = str(length)
            by_protocol["sliding"][key] = by_protocol["non-overlapping"][key] = exact[key] = None
            if not self.defined(length) or not task.fills(length + 1):
                continue
            losses, correct = self.answers(params, task, length, seed)
            by_protocol["non-overlapping"][key] = losses.tolist()
            exact[key] = float(correct.mean())
        by_position = {"length": self.config.lengths[-1], "loss": None}
        return {"losses": by_protocol, "by_position": by_position, "exact": exact}
