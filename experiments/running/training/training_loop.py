"""One run: opens its data, trains to the last step or a signal, evaluates by length."""

import collections
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import grain
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh

from experiments.running.files import own_code
from experiments.running.files.provenance import save_json
from experiments.running.process import distributed, signals
from experiments.running.process.errors import one_line_errors
from experiments.running.process.lock import Lock
from experiments.running.process.profiler import Profiler
from experiments.running.schedule.work import Worker
from pe_jax import position_schemes
from pe_jax.released import load, start
from pe_jax.training import data, metrics, paths, sharding, tasks, tokenizer, utilization
from pe_jax.training.checkpoint import (
    BINDING,
    Checkpoints,
    abstract,
    check_same,
    difference,
)
from pe_jax.training.config import PROTOCOLS, Config, EvalConfig
from pe_jax.training.evaluate import Evaluator, pieces
from pe_jax.training.metrics import Metrics
from pe_jax.training.optimizer import schedule
from pe_jax.training.step import State, Trainer
from pe_jax.validation import ConfigError, refuse

AnyConfig = TypeVar("AnyConfig", bound=Config)
AHEAD = 2  # steps that the host is ahead: one runs, the next is queued, and the device never waits


@dataclasses.dataclass(frozen=True)
class Source:
    """The data of a run: a corpus and its tokenizer, or a task; and the evaluation data.

    Attributes:
      corpus: of the training rows, or a task.
      tokens: the tokenizer; None for a task, which has its own tokens.
      text: windows to evaluate on; None for a task, which has no splits.
      question_set: which questions of a task to evaluate on.
    """

    corpus: Any
    tokens: Any
    text: np.ndarray | None
    question_set: int = 0

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return (self.tokens or self.corpus).vocab


class InFlight:
    """The last steps that were dispatched; adding one waits until at most `AHEAD` are unfinished.

    JAX returns before a program has run: without a bound the host queues steps until its memory is
    full, and a signal, a row of metrics or a checkpoint waits for all of them.
    """

    def __init__(self) -> None:
        self.results: collections.deque = collections.deque()

    def add(self, result: Any) -> None:
        """Adds a step by one of its results, an array that no later step donates."""
        self.results.append(result)
        if len(self.results) > AHEAD:
            jax.block_until_ready(self.results.popleft())


class Diverged(RuntimeError):
    """The loss or its gradient stays not finite."""


def run(config: Config, profile: bool = False) -> None:
    """Trains and evaluates one model, and writes evaluation.json; does nothing if that exists.

    With `profile` a few steps are traced, into the workdir.
    """
    folder, is_first = paths.folder(config.workdir), jax.process_index() == 0
    with one_line_errors():
        if profile and paths.is_bucket(folder):
            raise ConfigError(f"--profile: {config.workdir} takes no trace; choose a local workdir")
        (source,) = open_source(config, config.eval)
        config = with_vocab(config, source.vocab)
        trainer = prepare(config)
        evaluator = Evaluator(trainer, config.eval, source.tokens and source.tokens.begin)
        finished, about = (folder / "evaluation.json").exists(), run_metadata(config, source)
        if (folder / "config.json").exists():
            saved = json.loads((folder / "config.json").read_text())
            check_same(saved, about, (*BINDING, *(("steps",) if finished else ())))
            if finished and (found := difference(saved, about, ("eval",))):
                name, old, new = found
                raise ConfigError(
                    f"{name}={new!r}: {folder / 'evaluation.json'} was made with {old!r}; take it"
                    " away and repeat the command, which evaluates the run without training"
                )
        if finished:
            logging.info("%s is finished: nothing to do", folder)
            return
        batches(config, source, trainer.mesh)  # raises any data error before anything is written
        lock = contextlib.closing(Lock(folder)) if is_first else contextlib.nullcontext()
    with lock:
        if is_first:
            save_json(folder / "config.json", about)
        begin = time.monotonic()
        with signals.Stop() as stop:
            worker = Worker(config.model.encoding, trainer.mesh, stop, metrics.log)
            evaluation, evaluator = {}, evaluator.heeding(stop.check)
            try:
                state = train(config, source, evaluator, worker, profile=profile)
                if stop.signal is None:
                    evaluation = {"status": "ok", "seconds": time.monotonic() - begin}
                    evaluation |= evaluate(evaluator, source, state)
            except Diverged as error:
                print(f"error: {error}", file=sys.stderr)
                sys.exit(1)
            except signals.Stopped:
                evaluation = {}  # all steps are saved
        if is_first and evaluation:
            save_json(folder / "evaluation.json", evaluation)
        stop.leave()
    for protocol, lengths in evaluation["losses"].items():
        for length, losses in lengths.items():
            text = "not defined" if losses is None else f"{np.mean(losses):.4f} nats"
            logging.info("%s, context %s: %s", protocol, length, text)


def open_source(config: Config, *evaluations: EvalConfig) -> tuple[Source, ...]:
    """Loads and checks the data before anything is compiled, for each of several evaluations.

    A task has no text; it asks other questions in each.

    Raises:
      ConfigError: it cannot be read or does not fit, or the workdir is part of it.
    """
    corpus = data.load(config.data, config.workdir)
    logging.info("data: %s", corpus.describe())
    if corpus.warning:
        logging.warning("data: %s", corpus.warning)
    if isinstance(corpus, tasks.Task):
        if not corpus.fitting(config.eval.lengths[0] + 1):
            least = corpus.decoded(corpus.shortest) - 1
            refuse("eval.lengths", config.eval.lengths, f"{corpus.name} needs at least {least}")
        return tuple(Source(corpus, None, None, k) for k in range(len(evaluations)))
    tokens = tokenizer.get(config.tokenizer)
    texts = {x: data.windows(corpus, tokens, x) for x in {*evaluations}}
    return tuple(Source(corpus, tokens, texts[x]) for x in evaluations)


def with_vocab(config: AnyConfig, vocab: int) -> AnyConfig:
    """The config with `model.vocab` set to the data's number of token ids if it is 0.

    Raises:
      ConfigError: it is smaller than that number.
    """
    model = dataclasses.replace(config.model, vocab=config.model.vocab or vocab)
    if model.vocab < vocab:
        raise ConfigError(f"model.vocab={model.vocab}: the data needs at least {vocab}")
    return dataclasses.replace(config, model=model)


def prepare(config: Config, mesh: Mesh | None = None) -> Trainer:
    """The trainer of a config with a vocabulary, on the given mesh or the config's.

    Raises:
      ConfigError: a size does not fit the mesh, or some positions are not defined.
    """
    mesh = mesh or sharding.make_mesh(config.mesh)
    lengths = {"length": config.length, **{f"eval.lengths: {n}": n for n in config.eval.lengths}}
    sharding.check_fits(config.model, config.batch, mesh, lengths, config.microbatches)
    schedule = config.optimizer, config.steps
    check_defined(config)
    return Trainer(config.model, *schedule, mesh, config.positions, config.microbatches)


def check_defined(config: Config) -> None:
    """Raises ConfigError where a row has positions that the encodings do not define."""
    scheme = position_schemes.choose(config.positions, config.model.pattern)
    limit = position_schemes.position_limit(config.model.pattern)
    if not scheme.fits(config.length, limit):
        what = f"{config.model.encoding!r} is defined for {limit} positions, {config.positions} has"
        fix = "shorten them or lengthen the table"
        refuse("length", config.length, f"{what} {scheme.bound(config.length)}; {fix}")


def batches(config: Config, source: Source, mesh: Mesh, skip: int = 0):
    """An endless iterator over this process's part of each batch, after the first `skip`."""
    index, count = sharding.data_shard(mesh)
    return data.train_iterator(
        source.corpus,
        source.tokens,
        length=config.length,
        batch=config.batch,
        seed=config.seed,
        process_index=index,
        process_count=count,
        skip=skip,
    )


def run_metadata(config: Config, source: Source) -> dict:
    """The config with digests of the corpus, the tokenizer and the checkpoint, as JSON.

    `folder` is where its relative paths start.
    """
    tokens = source.tokens and source.tokens.digest
    digests = {"corpus": source.corpus.digest, "tokens": tokens}
    if config.checkpoint:
        digests["weights"] = start.digests(start.read(config.checkpoint))[0]
    code = own_code.digests([config.model.encoding])
    fields = {**dataclasses.asdict(config), **digests, "code": code, "folder": os.getcwd()}
    return json.loads(json.dumps(fields))


def train(
    config: Config,
    source: Source,
    evaluator: Evaluator,
    worker: Worker,
    params: Any = None,
    *,
    profile: bool = False,
) -> State:
    """Trains from the last checkpoint, or from the start, to the last step or a signal.

    The start is a new model, the checkpoint's, or the trained `params`, with a new optimizer. A row
    of metrics has the mean loss of the steps since the last row, and every `eval.every` steps the
    evaluation loss; the worker hears of the progress at each. With `profile` a few steps are
    traced.

    Data or a checkpoint that cannot be read or written end the program, on one line.

    Raises:
      Diverged: too many consecutive updates were not finite, naming the layer and the last
        checkpoint; nothing is saved.
    """
    folder, trainer = paths.folder(config.workdir), evaluator.trainer
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(contextlib.closing(Checkpoints(folder / "checkpoints")))
        data_parts, processes = sharding.data_shard(trainer.mesh)[1], jax.process_count()
        more = {"readers": [data_parts, processes], "devices": dict(trainer.mesh.shape)}
        metadata = run_metadata(config, source) | more
        trainer.compile(config.batch, config.length)
        state = trainer.init(config.seed, config.optimizer)
        if params is not None:  # a copy, since steps donate their state
            state = state._replace(params=jax.tree.map(jnp.copy, params))
        distributed.wait_for_all()
        state, rows, done = _resumed(checkpoints, config, source, trainer, state, metadata)
        if config.checkpoint and params is None and not done:
            state = state._replace(params=released(config, trainer.mesh))
        if done:
            logging.info("%s continues at step %d", worker.label, done)
        peak = utilization.peak(trainer.mesh.devices.flat)  # None if unknown
        flops = utilization.flops_per_token(trainer.config, trainer.shapes, config.length)
        at_peak = None if peak is None else peak / flops
        writer = Metrics(folder, config.steps, worker.label, done, at_peak, worker.report)
        stack.enter_context(contextlib.closing(writer)).start(done)
        if worker.stop.due():  # a signal came while compiling: there is nothing to save
            return state
        stack.enter_context(worker.stop.saving())
        profiler = Profiler(folder / "profile", profile, done, config.steps)
        stack.enter_context(contextlib.closing(profiler))
        in_flight, losses = InFlight(), []  # losses since the last row of metrics
        for step in range(done + 1, config.steps + 1):
            batch = _next_batch(rows, step)
            with writer.paused():
                profiler.before(step, state)
            state, step_metrics = trainer.step(state, trainer.put(batch), np.int32(config.seed))
            if jax.process_count() > 1 and jax.default_backend() == "cpu":
                jax.block_until_ready(state)  # else they deadlock if one runs ahead
            in_flight.add(step_metrics.loss)
            losses.append(step_metrics.loss)
            stopping = worker.stop.due()  # read once: a signal may come at any moment
            last, every = step == config.steps, config.eval.every
            saves = stopping or last or (config.save_every > 0 and step % config.save_every == 0)
            evaluates = every > 0 and not stopping and (last or step % every == 0)
            if saves or evaluates or step == 1 or step % config.log_every == 0:
                row = {name: float(value) for name, value in step_metrics._asdict().items()}
                _check_finite(row["loss"], trainer, state, batch, step, checkpoints, saves)
                taken = [x for x in map(float, losses) if np.isfinite(x)]  # others were skipped
                row["loss"], losses = float(np.mean(taken)) if taken else np.nan, []
                if evaluates:
                    # after a signal the row goes without, and the next step is saved
                    with writer.paused(), contextlib.suppress(signals.Stopped):
                        loss = training_length_loss(evaluator, source, state, config.length)
                        row["eval_loss"] = loss
                writer.write(step, config.batch * config.length, **row)
            if saves:
                with one_line_errors():
                    writer.upload()
                    checkpoints.save(step, state, rows, metadata)
                writer.start(step)
            if stopping:
                break
    return state


def released(config: Config, mesh: Mesh) -> Any:
    """The parameters of a run's checkpoint, with its encodings: float32, sharded as in training.

    Raises:
      ConfigError: a tensor is missing or another than the checkpoint's config says.
    """
    with one_line_errors():
        checkpoint = start.read(config.checkpoint)
        model = load.model(checkpoint, mesh=mesh, encoding=config.model.encoding)
    return nnx.as_pure(nnx.state(model, nnx.Param))


def _resumed(
    checkpoints: Checkpoints,
    config: Config,
    source: Source,
    trainer: Trainer,
    new: State,
    metadata: dict,
) -> tuple[State, grain.DatasetIterator, int]:
    """The last checkpoint's state, its data and its step, or the new state, all data and 0."""
    with one_line_errors():
        rows = batches(config, source, trainer.mesh)
        done = checkpoints.latest() or 0
        if done > config.steps:
            raise ConfigError(f"steps={config.steps}: the checkpoint is at step {done} already")
        if not done:
            return new, rows, 0
        saved = checkpoints.meta(done)
        saved_readers = saved.get("readers", [1, 1])
        same_readers = saved_readers == metadata["readers"]
        like = abstract(new, trainer.shardings)
        state = checkpoints.restore(done, like, rows if same_readers else None, metadata)
        if saved["steps"] != config.steps:
            _warn_of_other_steps(config, saved["steps"], done)
        if not same_readers:  # an iterator's state is that of its part of the data
            text = "Data is distributed again (parts, processes: %s, not %s): not bitwise the same"
            logging.warning(text, metadata["readers"], saved_readers)
            rows = batches(config, source, trainer.mesh, skip=done)
        return state, rows, done


def _warn_of_other_steps(config: Config, before: int, done: int) -> None:
    """Names both schedules, of which a continued run follows neither as a whole."""
    old, new = (
        np.asarray(schedule(config.optimizer, steps)(done)).item()
        for steps in (before, config.steps)
    )
    logging.warning(
        "steps=%d: the first %d steps had the learning rates of steps=%d; the next has %.3g of the"
        " peak, not %.3g: the run follows neither schedule as a whole",
        *(config.steps, done, before, new, old),
    )


def _next_batch(rows: Iterator[dict], step: int) -> dict:
    with one_line_errors():
        try:
            return next(rows)
        except Exception as error:  # readers raise exceptions of many kinds
            raise ConfigError(f"no data for step {step}: {error or repr(error)}") from error


def _check_finite(
    loss: float,
    trainer: Trainer,
    state: State,
    batch: dict,
    step: int,
    checkpoints: Checkpoints,
    saving: bool,
) -> None:
    """Raises Diverged after too many skipped updates, or if a state to be saved is not finite."""
    consecutive = int(state.skipped[0])
    if consecutive <= trainer.skips and (not saving or trainer.finite(state)):
        return
    last = checkpoints.latest()
    fallback = f"the last good checkpoint is step {last}" if last else "nothing was saved"
    raise Diverged(
        f"loss {loss} by step {step}: {_not_finite(trainer, state, batch)}; {consecutive} updates"
        f" in a row skipped (optimizer.skips={trainer.skips}); {fallback}"
    )


def _not_finite(trainer: Trainer, state: State, batch: dict) -> str:
    if jax.process_count() > 1:  # running layer by layer needs all arrays in this process
        return "the gradient or a layer"
    try:
        tokens, segments = batch["tokens"][:, :-1], batch["segments"][:, :-1]
        positions = trainer.position_scheme.test_positions(jax.random.key(0), tokens, segments)
        model = trainer.model(state.params)
        model = trainer.at_positions(model, positions, tokens.shape[1], testing=True)
        model.check_finite(tokens, positions=positions, segments=segments)
    except FloatingPointError as error:
        return str(error)
    return "the gradient"


def training_length_loss(evaluator: Evaluator, source: Source, state: State, length: int) -> float:
    """Mean loss on the evaluation text at the training length, non-overlapping (nats)."""
    if source.text is None:
        losses, _ = evaluator.answers(state.params, source.corpus, length, source.question_set)
    else:
        rows = pieces(source.text, length, PROTOCOLS[0], evaluator.config.stride)
        losses, _ = evaluator.run(state.params, rows)
    return float(losses.mean())


def evaluate(evaluator: Evaluator, source: Source, state: State) -> dict:
    """Losses by length, for `evaluation.json`."""
    if source.text is None:
        return evaluator.by_task_length(state.params, source.corpus, source.question_set)
    return evaluator.by_length(state.params, source.text)
