"""Every method on every run: LongRoPE's search, the fine-tune, results before and after it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments.running.configs.extend import ExtendConfig
from experiments.running.extension import longrope_search
from experiments.running.extension.bases import Base
from experiments.running.extension.methods import drops_rope, names
from experiments.running.files.run_names import folder
from experiments.running.schedule.work import Run, Runs, Work, Worker, failing
from experiments.running.training import trained_run
from experiments.running.training.training_loop import (
    Diverged,
    Source,
    evaluate,
    prepare,
    train,
)
from pe_jax import position_schemes
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.training import data, passkeys
from pe_jax.training.config import Config
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.step import State, Trainer
from pe_jax.validation import ConfigError, refuse

OTHER_DATA = 2**30  # added to a run's seed, so that the fine-tune gets other rows


def target(config: ExtendConfig, length: int) -> int:
    """The target length.

    Raises:
      ConfigError: it is not an integer, or it or the trained length is not evaluated.
    """
    target_length = config.factor * length
    if target_length != int(target_length):
        raise ConfigError(f"factor={config.factor}: times the run's length={length} must be whole")
    for needed in (length, int(target_length)):
        if needed not in config.eval.lengths:
            what = f"the run's length is {length}, the target {int(target_length)}"
            refuse("eval.lengths", config.eval.lengths, f"add {needed}; {what}")
    return int(target_length)


def longer(config: ExtendConfig, base: Base, encoding: str, folder: Path) -> Config:
    """The run that continues a trained one at the target length.

    Where a method drops RoPE, as in DroPE, or positions skip ahead, as in PoSE, it goes on at the
    trained length, with more rows: each reads as many tokens.

    Raises:
      ConfigError: positions that skip ahead, but not to the target.
    """
    length, batch = target(config, base.config.length), config.batch
    scheme = position_schemes.parse(config.positions)
    skips = isinstance(scheme, position_schemes.Pose) and scheme.maximum == length
    if not skips and type(scheme) is not position_schemes.Contiguous:
        fix = f"pass contiguous, or pose(maximum={length})"
        raise ConfigError(f"positions={config.positions!r}: the target is {length}; {fix}")
    goes_on = config.steps and encoding == base.config.model.encoding
    if skips or (drops_rope(encoding) and not goes_on):
        length, batch = base.config.length, batch * length // base.config.length
    return dataclasses.replace(
        base.config,
        workdir=str(folder),
        seed=(base.config.seed + OTHER_DATA) % 2**31,
        length=length,
        positions=config.positions,
        batch=batch,
        microbatches=1,
        steps=max(config.steps, 1),  # 0 disables training
        log_every=config.log_every,
        save_every=config.save_every,
        model=dataclasses.replace(base.config.model, encoding=encoding),
        optimizer=config.optimizer,
        mesh=config.mesh,
        eval=config.eval,
    )


def needles(config: ExtendConfig, source: Source, length: int) -> tuple[np.ndarray, np.ndarray]:
    """What LongRoPE's search reads: as `passkeys.questions`, in training text of the target length.

    Raises:
      ConfigError: the text has fewer or shorter documents, or rows are too short for a passkey.
    """
    text = data.eval_windows(
        source.corpus,
        source.tokens,
        split="train",
        count=config.batch,
        length=target(config, length) + 1,
        field="batch",
    )
    return passkeys.questions(text, source.tokens, config.depths)


class Methods:
    """Applies every method to every run; runs of other encodings keep theirs.

    Attributes:
      others: name → runs of another encoding.
      parts: "plain", and "tuned" if there is a fine-tune; with the steps of each.
      has_factors: whether the search for LongRoPE's has not failed, which some methods need.
    """

    def __init__(
        self,
        config: ExtendConfig,
        bases: list[Base],
        others: dict[str, list[Base]],
        source: Source,
        passkeys: dict,
    ):
        self.config, self.bases, self.others, self.source = config, bases, others, source
        self.passkeys, self.has_factors = passkeys, True
        self.parts = {"plain": 0} | ({"tuned": config.steps} if config.steps else {})

    def search(self, worker: Worker) -> dict:
        """What `longrope_search.search` returns for the first run, on passkeys in training text."""
        logging.info("Searching LongRoPE's factors: about %d lists", self.config.search)
        base, factor = self.bases[0], self.config.factor
        model, length = base.config.model, base.config.length
        rope = next(e for e in model.pattern if isinstance(e, RoPE))
        trainer = prepare(
            longer(self.config, base, model.encoding, Path(self.config.workdir)), worker.mesh
        )
        params = trained_run.restore(base.folder, trainer).params
        gain = LongRoPE((1.0,), (1.0,), length, factor=factor).attention_factor
        evaluator = Evaluator(longrope_search.with_factors(trainer, gain), self.config.eval)
        evaluator = evaluator.heeding(worker.stop.check)
        rows, in_answer = needles(self.config, self.source, length)

        def loss(factors: np.ndarray) -> float:
            losses, _ = evaluator.run((params, jnp.asarray(factors, jnp.float32)), rows)
            return float(losses[in_answer].mean())

        theta = longrope_search.frequencies(rope, model.dims.head_dim)
        return longrope_search.search(loss, theta, factor, length, self.config.search)

    def work(self, name: str, encoding: str) -> Work:
        """The method or other encoding of that name on every run."""
        return Work(name, [*self.parts.values()] * len(self.bases), self._runs(name, encoding))

    def _runs(self, name: str, encoding: str) -> Runs[dict[int, dict]]:
        """Runs that come to seed → "plain" and "tuned" → its results.

        Raises:
          ConfigError: saved results are another encoding's.
        """
        config, runs = self.config, []
        bases, kind, spec = self.bases, "runs", names(config).get(name, "")
        if name in self.others:  # apart: `nope` is a method too
            bases, kind, spec = self.others[name], "trained", encoding
        first = longer(config, bases[0], encoding, Path(config.workdir))
        evaluator = functools.cache(lambda mesh: Evaluator(prepare(first, mesh), config.eval))
        for base in bases:
            seed = base.config.seed
            path = Path(config.workdir, kind, folder(spec), f"seed{seed}")
            run = longer(config, base, encoding, path)
            for part, steps in self.parts.items():
                label = f"{name} seed {seed}" + f" {part}" * (len(self.parts) > 1)
                evaluate = functools.partial(self._evaluate, base, run, steps, evaluator)
                if "{searched}" in spec and not self.has_factors:
                    evaluate = functools.partial(failing, longrope_search.FAILED)
                runs.append(Run(label, path / f"{part}.json", steps, evaluate))
        results = yield runs
        for run, result in zip(runs, results, strict=True):
            if result.get("encoding", encoding) != encoding:
                raise ConfigError(
                    f"encodings: {name!r} is {encoding!r} here, {result['encoding']!r} in"
                    f" {run.file}; use a new --config.workdir"
                )
        count = len(self.parts)
        parts = [results[k : k + count] for k in range(0, len(results), count)]
        return {
            base.config.seed: dict(zip(self.parts, found, strict=True))
            for base, found in zip(bases, parts, strict=True)
        }

    def _evaluate(
        self,
        base: Base,
        run: Config,
        steps: int,
        make_evaluator: Callable[[Mesh], Evaluator],
        worker: Worker,
    ) -> dict | None:
        """Evaluates a run with a method, after the fine-tune if it has steps."""
        result: dict = {"encoding": run.model.encoding, "status": "ok", "reason": ""}
        if base.diverged:
            return {**result, "status": "diverged", "reason": base.diverged}
        evaluator = make_evaluator(worker.mesh).heeding(worker.stop.check)
        state = self._restored(base, run, evaluator.trainer)
        asked = {n: x if evaluator.defined(n) else None for n, x in self.passkeys.items()}
        if steps:
            try:
                state = train(run, self.source, evaluator, worker, state.params)
            except Diverged as error:
                return {**result, "status": "diverged", "reason": str(error)}
        if worker.stop.signal is not None:
            return None
        result |= evaluate(evaluator, self.source, state)
        result["passkeys"] = passkey_accuracy(self.config, evaluator, state.params, asked)
        return result

    def _restored(self, base: Base, run: Config, trainer: Trainer) -> State:
        """The last state of a trained run; what a method adds to it has its initial values."""
        plain = dataclasses.replace(run, model=base.config.model)
        plain_trainer = prepare(plain, trainer.mesh)
        if jax.tree.structure(plain_trainer.shapes) == jax.tree.structure(trainer.shapes):
            return trained_run.restore(base.folder, trainer)
        fresh, trained = trainer.init(run.seed), trained_run.restore(base.folder, plain_trainer)
        return fresh._replace(params=with_trained(fresh.params, trained.params))


def with_trained(fresh: Any, trained: Any) -> Any:
    """Parameters of a model, from a trained one that has some of them."""
    by_path = dict(jax.tree.leaves_with_path(trained))
    return jax.tree.map_with_path(lambda path, x: by_path.get(path, x), fresh)


def passkey_accuracy(config: ExtendConfig, evaluator: Evaluator, params, questions: dict) -> dict:
    """The fraction of passkeys and of their tokens that are right, by length and depth.

    Each token is the likeliest after the question and the true answer so far, so that an answer is
    right if greedy decoding gives it.
    """
    by_length: dict = {}
    for length, rows_and_targets in questions.items():
        by_length[str(length)] = None
        if rows_and_targets is not None:
            rows, target = rows_and_targets
            _, correct = evaluator.run(params, rows)
            exact = (correct | ~target).all(1).reshape(config.depths, -1).mean(1)
            tokens = ((correct & target).sum(1) / target.sum(1)).reshape(config.depths, -1).mean(1)
            by_length[str(length)] = {"exact": exact.tolist(), "tokens": tokens.tolist()}
    return by_length
