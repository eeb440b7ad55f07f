"""Trains one model and evaluates it by length.

    python -m experiments.train --config=configs/train.py --encoding=alibi

Files in the workdir: metrics.jsonl, events/ (TensorBoard), checkpoints/, config.json,
evaluation.json. The same command again continues where it stopped, or finds it finished.
"""

import contextlib
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments import launch
from experiments.provenance import save_json
from pe_jax.training import data, placement, sharding, tasks, tokenizer
from pe_jax.training.checkpoint import BINDING, Checkpoints, abstract, check_same
from pe_jax.training.config import Config
from pe_jax.training.evaluate import Evaluator, windows
from pe_jax.training.metrics import Metrics
from pe_jax.training.step import State, Trainer


@dataclasses.dataclass
class Source:
    """The data of a run: a corpus and its tokenizer, or a task; and what is evaluated on."""

    corpus: Any
    tokens: Any
    text: np.ndarray | None

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return (self.tokens or self.corpus).vocab


def open_source(config: Config) -> Source:
    """Loads and checks the data before anything is compiled."""
    corpus = data.load(config.data)
    logging.info("data: %s", corpus.describe())
    if isinstance(corpus, tasks.Task):
        if tasks.longest(config.eval.lengths[0] + 1) < 1:
            raise ValueError(f"eval.lengths={config.eval.lengths}: {corpus.name} needs at least 4")
        return Source(corpus, None, None)
    tokens = tokenizer.get(config.tokenizer)
    return Source(corpus, tokens, windows(corpus, tokens, config.eval))


def prepare(config: Config, vocab: int, mesh: Mesh | None = None) -> Trainer:
    """Fills in the vocabulary and the mesh, checks that all fits, and makes the programs."""
    config.model.vocab = config.model.vocab or vocab
    if config.model.vocab < vocab:
        raise ValueError(f"model.vocab={config.model.vocab}: the data needs at least {vocab}")
    mesh = mesh or sharding.make_mesh(config.mesh)
    lengths = {"length": config.length, **{f"eval.lengths: {n}": n for n in config.eval.lengths}}
    sharding.check_fits(config.model, config.batch, mesh, lengths)
    pattern = config.model.pattern
    places, limit = placement.choose(config.positions, pattern), placement.limit(pattern)
    if not places.fits(config.length, limit):
        raise ValueError(
            f"length={config.length}: {config.model.encoding!r} is defined for {limit} positions,"
            f" {config.positions} has {places.reach(config.length)};"
            " shorten them or lengthen the table"
        )
    model = dataclasses.replace(config.model)
    return Trainer(model, config.optimizer, config.steps, mesh, config.positions)


def batches(config: Config, source: Source, mesh: Mesh):
    """The endless iterator of this process's part of each batch."""
    index, count = sharding.data_shard(mesh)
    return data.train_iterator(
        source.corpus,
        source.tokens,
        length=config.length,
        batch=config.batch,
        seed=config.seed,
        process_index=index,
        process_count=count,
    )


def meta(config: Config, source: Source) -> dict:
    """What a checkpoint belongs to: the config and the corpus, as JSON has them."""
    return json.loads(json.dumps({**dataclasses.asdict(config), "corpus": source.corpus.digest}))


class Diverged(RuntimeError):
    """The loss is no longer finite."""


def train(config: Config, source: Source, trainer: Trainer, label: str, stop: launch.Stop) -> State:
    """Trains from the last checkpoint, or from the start, to the last step or a signal.

    Raises:
      Diverged: the loss is not finite; the layer is named, and nothing is saved.
      ValueError: the checkpoint belongs to another run.
    """
    folder = Path(config.workdir)
    readers = [sharding.data_shard(trainer.mesh)[1], jax.process_count()]
    about = meta(config, source) | {"readers": readers}
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(contextlib.closing(Checkpoints(folder / "checkpoints")))
        rows = batches(config, source, trainer.mesh)
        trainer.compile(config.batch, config.length)
        state = trainer.init(config.seed)
        done = checkpoints.latest() or 0
        if done > config.steps:
            raise ValueError(f"steps={config.steps}: the checkpoint is at step {done} already")
        if done:
            before = checkpoints.meta(done).get("readers", [1, 1])
            same = rows if before == readers else None
            state = checkpoints.restore(done, abstract(state, trainer.shardings), same, about)
            logging.info("%s continues at step %d", label, done)
            if before != readers:  # an iterator's state is of its own part of the data
                text = "The data is dealt anew (parts, processes: %s, not %s): not bitwise the same"
                logging.warning(text, readers, before)
                for _ in range(done):
                    next(rows)
        metrics = stack.enter_context(contextlib.closing(Metrics(folder, config.steps, label)))
        metrics.start(done)
        lockstep = jax.process_count() > 1 and jax.default_backend() == "cpu"  # else they deadlock
        tokens = config.batch * config.length
        for step in range(done + 1, config.steps + 1):
            batch = next(rows)
            state, values = trainer.step(state, trainer.put(batch), np.int32(config.seed))
            if lockstep:
                jax.block_until_ready(state)
            stopping = stop.signal is not None  # asked once: a signal may come at any moment
            save = (
                stopping
                or step == config.steps
                or (config.save_every and step % config.save_every == 0)
            )
            if save or step % config.log_every == 0:
                found = {name: float(value) for name, value in values.items()}
                _check_finite(found, trainer, state, batch, step)
                metrics.write(step, tokens, **found)
            if save:
                checkpoints.save(step, state, rows, about)
                metrics.start(step)
            if stopping:
                break
    return state


def _check_finite(found: dict, trainer: Trainer, state: State, batch: dict, step: int) -> None:
    if all(map(math.isfinite, found.values())):
        return
    where = "the gradient"
    try:
        model = trainer.model(state.params)
        rows = batch["tokens"][:, :-1], batch["segments"][:, :-1]
        places = trainer.positions.test(jax.random.key(0), *rows)
        model.check_finite(rows[0], positions=places, segments=rows[1])
    except FloatingPointError as error:
        where = str(error)
    raise Diverged(f"loss {found['loss']} by step {step}: {where}; nothing was saved")


def evaluate(evaluator: Evaluator, source: Source, state: State) -> dict:
    """Losses by length, as `evaluation.json` has them."""
    if source.text is None:
        return evaluator.by_task_length(state.params, source.corpus)
    return evaluator.by_length(state.params, source.text)


def main(config: Config) -> None:
    """Trains, evaluates, and writes what was found."""
    with launch.one_line_errors():
        source = open_source(config)
        trainer = prepare(config, source.vocab)
        folder = Path(config.workdir)
        saved, finished = folder / "config.json", (folder / "evaluation.json").exists()
        if saved.exists():
            fields = (*BINDING, "steps", "eval") if finished else BINDING
            check_same(json.loads(saved.read_text()), meta(config, source), fields)
        if finished:
            logging.info("%s is finished: nothing to do", folder)
            return
        batches(
            config, source, trainer.mesh
        )  # raises what training would, before anything is written
        if jax.process_index() == 0:
            save_json(saved, meta(config, source))
    begin = time.monotonic()
    with launch.Stop() as stop:
        try:
            state = train(config, source, trainer, config.model.encoding, stop)
        except Diverged as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
    if stop.signal is not None:
        sys.exit(128 + stop.signal)
    found = {"status": "ok", "seconds": time.monotonic() - begin}
    found |= evaluate(Evaluator(trainer, config.eval), source, state)
    if jax.process_index() == 0:
        save_json(folder / "evaluation.json", found)
    for protocol, lengths in found["losses"].items():
        for length, losses in lengths.items():
            text = "not defined" if losses is None else f"{np.mean(losses):.4f} nats"
            logging.info("%s, context %s: %s", protocol, length, text)


if __name__ == "__main__":
    launch.run(main, "configs/train.py")
