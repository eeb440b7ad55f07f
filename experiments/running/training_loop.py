"""One run: opens its data, trains to the last step or a signal, evaluates by length."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments.running import distributed, signals
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.provenance import save_json
from pe_jax import position_schemes
from pe_jax.training import data, sharding, tasks, tokenizer
from pe_jax.training.checkpoint import BINDING, Checkpoints, abstract, check_same
from pe_jax.training.config import PROTOCOLS, Config
from pe_jax.training.evaluate import Evaluator, pieces, windows
from pe_jax.training.metrics import Metrics
from pe_jax.training.step import State, Trainer


@dataclasses.dataclass
class Source:
    """The data of a run: a corpus and its tokenizer, or a task; and what is evaluated on.

    That is text, or the questions of a task that `asked` chooses, as a task has no splits.
    """

    corpus: Any
    tokens: Any
    text: np.ndarray | None
    asked: int = 0

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return (self.tokens or self.corpus).vocab


def open_source(config: Config) -> Source:
    """Loads and checks the data before anything is compiled."""
    corpus = data.load(config.data)
    logging.info("data: %s", corpus.describe())
    if corpus.warning:
        logging.warning("data: %s", corpus.warning)
    if isinstance(corpus, tasks.Task):
        if not corpus.fitting(config.eval.lengths[0] + 1):
            least = corpus.decoded(corpus.shortest) - 1
            raise ValueError(
                f"eval.lengths={config.eval.lengths}: {corpus.name} needs at least {least}"
            )
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
    places = position_schemes.choose(config.positions, pattern)
    limit = position_schemes.position_limit(pattern)
    if not places.fits(config.length, limit):
        raise ValueError(
            f"length={config.length}: {config.model.encoding!r} is defined for {limit} positions,"
            f" {config.positions} has {places.bound(config.length)};"
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
    """What a checkpoint belongs to: the config, the corpus and the tokens, as JSON has them."""
    found = {**dataclasses.asdict(config), "corpus": source.corpus.digest}
    found["tokens"] = source.tokens and source.tokens.digest
    return json.loads(json.dumps(found))


class Diverged(RuntimeError):
    """The loss or its gradient is not finite, and does not come back."""


def train(
    config: Config,
    source: Source,
    evaluator: Evaluator,
    label: str,
    stop: signals.Stop,
    params: Any = None,
) -> State:
    """Trains from the last checkpoint, or from the start, to the last step or a signal.

    The start is a new model, or `params` of one that was trained, with a new optimizer. A row of
    metrics has the mean loss of the steps since the last row, and every `eval.every` steps the loss
    of the text to evaluate on.

    Data or a checkpoint that cannot be read or written end the program, on one line.

    Raises:
      Diverged: too many updates in a row were not finite; the layer is named and the last
        checkpoint, and nothing is saved.
    """
    folder, trainer = Path(config.workdir), evaluator.trainer
    readers = [sharding.data_shard(trainer.mesh)[1], jax.process_count()]
    about = meta(config, source) | {"readers": readers, "devices": dict(trainer.mesh.shape)}
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(contextlib.closing(Checkpoints(folder / "checkpoints")))
        rows = batches(config, source, trainer.mesh)
        trainer.compile(config.batch, config.length)
        state = trainer.init(config.seed)
        if params is not None:  # a copy: steps donate their state
            state = state._replace(params=jax.tree.map(jnp.copy, params))
        distributed.wait_for_all()
        with one_line_errors():
            state, done = _begin(checkpoints, config, trainer, state, rows, about)
        if done:
            logging.info("%s continues at step %d", label, done)
        metrics = Metrics(folder, config.steps, label, done)
        stack.enter_context(contextlib.closing(metrics)).start(done)
        lockstep = jax.process_count() > 1 and jax.default_backend() == "cpu"  # else they deadlock
        tokens, losses = config.batch * config.length, []
        for step in range(done + 1, config.steps + 1):
            batch = _next(rows, step)
            state, values = trainer.step(state, trainer.put(batch), np.int32(config.seed))
            if lockstep:
                jax.block_until_ready(state)
            stopping = stop.after(step)  # asked once: a signal may come at any moment
            losses.append(values["loss"])
            save = stopping or step == config.steps or _due(step, config.save_every)
            tested = step == config.steps or _due(step, config.eval.every)
            tested = bool(config.eval.every) and tested and not stopping
            if save or tested or step == 1 or step % config.log_every == 0:
                found = {name: float(value) for name, value in values.items()}
                _check_finite(found, trainer, state, batch, step, checkpoints, save)
                found["loss"], losses = _mean_finite(losses), []
                if tested:
                    begin = time.monotonic()
                    found["eval_loss"] = trained_loss(evaluator, source, state, config.length)
                    metrics.pause(time.monotonic() - begin)
                metrics.write(step, tokens, **found)
            if save:
                with one_line_errors():
                    checkpoints.save(step, state, rows, about)
                metrics.start(step)
            if stopping:
                break
    return state


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _mean_finite(losses: list) -> float:
    """Of the steps that were not skipped; NaN if all were."""
    values = np.asarray([float(loss) for loss in losses])
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else np.nan


def _begin(
    checkpoints: Checkpoints, config: Config, trainer: Trainer, new: State, rows, about: dict
) -> tuple[State, int]:
    """The state to begin with, the last checkpoint's or the new one; advances `rows` to it."""
    done = checkpoints.latest() or 0
    if done > config.steps:
        raise ValueError(f"steps={config.steps}: the checkpoint is at step {done} already")
    if not done:
        return new, 0
    before = checkpoints.meta(done).get("readers", [1, 1])
    same = before == about["readers"]
    like = abstract(new, trainer.shardings)
    state = checkpoints.restore(done, like, rows if same else None, about)
    if not same:  # an iterator's state is of its own part of the data
        text = "The data is dealt anew (parts, processes: %s, not %s): not bitwise the same"
        logging.warning(text, about["readers"], before)
        for _ in range(done):
            next(rows)
    return state, done


def _next(rows: Iterator[dict], step: int) -> dict:
    with one_line_errors():
        try:
            return next(rows)
        except Exception as error:  # of a reader, its file, or its end: each raises its own
            raise ValueError(f"no data for step {step}: {error or repr(error)}") from error


def _check_finite(
    found: dict,
    trainer: Trainer,
    state: State,
    batch: dict,
    step: int,
    checkpoints: Checkpoints,
    save: bool,
) -> None:
    """Raises Diverged after too many skipped updates, or if a state to be saved is not finite."""
    row = int(state.skipped[0])
    if row <= trainer.skips and (not save or trainer.finite(state)):
        return
    last = checkpoints.latest()
    kept = f"the last good checkpoint is step {last}" if last else "nothing was saved"
    raise Diverged(
        f"loss {found['loss']} by step {step}: {_where(trainer, state, batch)}; {row} updates in a"
        f" row skipped (optimizer.skips={trainer.skips}); {kept}"
    )


def _where(trainer: Trainer, state: State, batch: dict) -> str:
    """In words, what is not finite first."""
    if jax.process_count() > 1:  # the layers are run one by one, which takes all of them here
        return "the gradient or a layer"
    try:
        rows = batch["tokens"][:, :-1], batch["segments"][:, :-1]
        model = trainer.model(state.params).at_length(rows[0].shape[1])
        places = trainer.position_scheme.test_positions(jax.random.key(0), *rows)
        model.check_finite(rows[0], positions=places, segments=rows[1])
    except FloatingPointError as error:
        return str(error)
    return "the gradient"


def trained_loss(evaluator: Evaluator, source: Source, state: State, length: int) -> float:
    """Mean loss on the text to evaluate on, at the length trained on, without overlap (nats)."""
    if source.text is None:
        losses, _ = evaluator.answers(state.params, source.corpus, length, source.asked)
    else:
        rows = pieces(source.text, length, PROTOCOLS[0], evaluator.config.stride)
        losses, _ = evaluator.run(state.params, rows)
    return float(losses.mean())


def evaluate(evaluator: Evaluator, source: Source, state: State) -> dict:
    """Losses by length, as `evaluation.json` has them."""
    if source.text is None:
        return evaluator.by_task_length(state.params, source.corpus, source.asked)
    return evaluator.by_length(state.params, source.text)


def run(config: Config) -> None:
    """Trains, evaluates, and writes what was found."""
    with one_line_errors():
        source = open_source(config)
        trainer = prepare(config, source.vocab)
        evaluator = Evaluator(trainer, config.eval)
        folder = Path(config.workdir)
        saved, finished = folder / "config.json", (folder / "evaluation.json").exists()
        if saved.exists():
            fields = (*BINDING, "steps", "eval") if finished else BINDING
            check_same(json.loads(saved.read_text()), meta(config, source), fields)
        if finished:
            logging.info("%s is finished: nothing to do", folder)
            return
        batches(config, source, trainer.mesh)  # raises what training would, and writes nothing
        first = jax.process_index() == 0
        lock = contextlib.closing(Lock(folder)) if first else contextlib.nullcontext()
    with lock:
        if first:
            save_json(saved, meta(config, source))
        begin = time.monotonic()
        with signals.Stop() as stop:
            try:
                state = train(config, source, evaluator, config.model.encoding, stop)
            except Diverged as error:
                print(f"error: {error}", file=sys.stderr)
                sys.exit(1)
        if stop.signal is not None:
            sys.exit(128 + stop.signal)
        found = {"status": "ok", "seconds": time.monotonic() - begin}
        found |= evaluate(evaluator, source, state)
        if first:
            save_json(folder / "evaluation.json", found)
    for protocol, lengths in found["losses"].items():
        for length, losses in lengths.items():
            text = "not defined" if losses is None else f"{np.mean(losses):.4f} nats"
            logging.info("%s, context %s: %s", protocol, length, text)
