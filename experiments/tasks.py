"""Encodings on tasks that isolate position: trained on short questions, tested on longer ones.

    python -m experiments.tasks --config=configs/tasks.py

Prints accuracies and writes results.json, tasks.csv and tasks.png into the workdir. Interrupted,
the same command goes on where it was, run by run.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich
import rich.table
from absl import logging
from jax.sharding import Mesh

from experiments import launch, plotting, statistics
from experiments.images import title
from experiments.provenance import save_json, together
from experiments.trials import Trials, finished
from pe_jax.training import placement, tasks
from pe_jax.training.step import PLACES, Trainer, token_losses
from pe_jax.training.sweeps import TasksConfig

BINDING = ("seed", "length", "lengths", "batch", "steps", "test", "model", "optimizer")
HEADER = (
    "encoding",
    "positions",
    "task",
    "length",
    "seed",
    "token_accuracy",
    "exact_match",
    "note",
)
TOKENS = 2**14  # in a forward pass of the test
FIXED = "a fixed answer"
PANELS = (  # title, which of a score's two numbers, whether beyond the training length
    ("Tokens right at the longest length trained on", 0, False),
    ("Tokens right at longer ones, mean over lengths", 0, True),
    ("Whole answers right at longer ones, mean over lengths", 1, True),
)


class Solver(Trainer):
    """Trains on the rows of any task; `answers` says what is right of the rows of a test."""

    def __init__(self, config: TasksConfig, spec: str, positions: str, mesh: Mesh):
        model = dataclasses.replace(config.model, encoding=spec, vocab=tasks.VOCAB)
        super().__init__(model, config.optimizer, config.steps, mesh, positions)
        self.answers = jax.jit(self._answers)

    def _logits(self, model, batch, places, key=None):
        model = model.at_length(batch["tokens"].shape[1])
        return model(batch["tokens"], segments=batch["segments"], positions=places, key=key)

    def loss(self, model, batch, key):
        """Mean cross entropy over the answers."""
        rows = batch["tokens"], batch["segments"]
        places = self.positions.train(jax.random.fold_in(key, PLACES), *rows)
        logits = self._logits(model, batch, places, key if self.dropout else None)
        scored = batch["weights"] > 0
        losses = jnp.where(scored, token_losses(logits, batch["targets"]), 0)
        return losses.sum() / scored.sum()

    def _answers(self, params, batch, key):
        places = self.positions.test(key, batch["tokens"], batch["segments"])
        logits = self._logits(self.model(params), batch, places)
        counts = batch["weights"] > 0
        finite = jnp.where(counts, jnp.isfinite(logits).all(-1), True).all()
        return (logits.argmax(-1) == batch["targets"]) | ~counts, finite

    def defined(self, task: tasks.Task, length: int) -> bool:
        """Whether the task has such questions, and their tokens positions that are defined."""
        limit, width = placement.limit(self.config.pattern), task.read(length, self.config.causal)
        return task.defined(length) and self.positions.fits(width, limit, testing=True)


TEST, OTHER = 0, 2  # streams of questions, beside those of training


def blocks(
    config: TasksConfig, task: tasks.Task, length: int, stream: int = TEST
) -> Iterator[dict]:
    """The questions to test on at a length, the same for all, in forward passes of one size."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), stream), length)
    rows = tasks.batch(task, key, config.test, length, length, config.model.causal)
    fits = max(1, TOKENS // task.read(length, config.model.causal))
    size = next(n for n in range(min(fits, config.test), 0, -1) if config.test % n == 0)
    for begin in range(0, config.test, size):
        yield {name: x[begin : begin + size] for name, x in rows.items()}


def accuracy(right: np.ndarray, weights: np.ndarray) -> list[float]:
    """[part of the tokens, part of the whole answers] that are right."""
    tokens = (right & (weights > 0)).sum() / (weights > 0).sum()
    return [float(tokens), float((right | (weights == 0)).all(1).mean())]


def score(config: TasksConfig, solver: Solver, task: tasks.Task, params: Any) -> dict:
    """By length: [token accuracy, exact match], or in words why there is none."""
    found: dict[str, list[float] | str] = {}
    for length in (config.length, *config.lengths):
        if not solver.defined(task, length):
            found[str(length)] = "not defined"
            continue
        right, weights, whole = [], [], True
        for number, rows in enumerate(blocks(config, task, length)):
            key = jax.random.fold_in(jax.random.key(config.seed), number)
            given, finite = jax.device_get(solver.answers(params, rows, key))
            right.append(given)
            weights.append(np.asarray(rows["weights"]))
            whole &= bool(finite)
        found[str(length)] = (
            accuracy(np.concatenate(right), np.concatenate(weights)) if whole else "not finite"
        )
    return found


def fixed(config: TasksConfig, task: tasks.Task) -> dict:
    """What knowing the task, but no question, would score: the likeliest token at each place.

    Of other questions than those that it is scored on, or it would have seen some of the answers.
    """
    found: dict[str, list[float] | str] = {}
    for length in (config.length, *config.lengths):
        if not task.defined(length):
            found[str(length)] = "not defined"
            continue
        targets, weights, place = _placed(blocks(config, task, length))
        seen, _, where = _placed(blocks(config, task, length, OTHER))
        right = np.zeros(place.shape, bool)
        for at in range(place.max() + 1):
            counts = np.bincount(seen[where == at], minlength=1)
            right |= (place == at) & (targets == counts.argmax())
        found[str(length)] = accuracy(right, weights)
    return found


def _placed(rows: Iterator[dict]) -> tuple[np.ndarray, ...]:
    """Targets, their weights, and the place of each in its answer, -1 where it is none."""
    listed = [jax.device_get(block) for block in rows]
    targets, weights = (np.concatenate([r[k] for r in listed]) for k in ("targets", "weights"))
    return targets, weights, np.where(weights > 0, weights.cumsum(1).astype(int) - 1, -1)


def one(config: TasksConfig, solver: Solver, task: tasks.Task, seed: int, stop) -> dict:
    """Trains once; scores by length. Empty if a signal came."""
    begin, keys = time.monotonic(), jax.random.fold_in(jax.random.key(seed), 1)
    state, loss = solver.init(seed), np.nan
    for step in range(1, config.steps + 1):
        key = jax.random.fold_in(keys, step)
        lengths = task.shortest, config.length
        batch = tasks.batch(task, key, config.batch, *lengths, config.model.causal)
        state, values = solver.step(state, batch, np.int32(seed))
        if step % config.log_every == 0 or step == config.steps:
            loss = float(values["loss"])
            what = solver.config.encoding, task.short, seed, step, loss
            logging.info("%s, %s, seed %d: step %d, loss %.4f", *what)
            if int(state.skipped[0]) > solver.skips:
                return {"status": "diverged", "step": step}
        if stop.signal is not None:
            return {}
    found = {"status": "ok", "loss": loss, "scores": score(config, solver, task, state.params)}
    return {**found, "seconds": time.monotonic() - begin}


def run(config: TasksConfig, entry: tuple[str, str], trials: Trials) -> dict:
    """Every run of an encoding with its positions: task → seed → what it gave."""
    solver = functools.cache(lambda: Solver(config, *entry, trials.mesh))
    found: dict[str, dict] = {name: {} for name in config.tasks}
    for seed in range(config.seed, config.seed + config.seeds):  # a seed of all tasks, first
        for name in config.tasks:
            found[name][seed] = trials.found(
                f"{name}/seed{seed}",
                lambda task=tasks.TASKS[name], seed=seed: one(
                    config, solver(), task, seed, trials.stop
                ),
            )
    return found


def label(config: TasksConfig) -> dict[str, str]:
    """What kinds of positions are called: by their name where that tells them apart."""
    short = [positions.partition("(")[0] for positions in config.positions]
    unique = len({*short}) == len(short)
    return dict(zip(config.positions, short if unique else config.positions, strict=True))


def collect(config: TasksConfig, runs: dict) -> list[dict]:
    """One entry an encoding and kind of positions: scores by task, length and seed."""
    called = label(config)
    entries = [(spec, called[positions]) for spec, positions in runs]
    lengths, found = [str(n) for n in (config.length, *config.lengths)], []
    for (spec, positions), by_task in runs.items():
        scores = {
            task: {n: {s: _score(run, n) for s, run in by_seed.items()} for n in lengths}
            for task, by_seed in by_task.items()
        }
        name = title(spec, called[positions], entries, "contiguous")
        found.append({"name": name, "spec": spec, "positions": positions, "scores": scores})
    guess = {
        task: {n: {"": value} for n, value in fixed(config, tasks.TASKS[task]).items()}
        for task in config.tasks
    }
    return [{"name": FIXED, "spec": "", "positions": "", "scores": guess}, *found]


def _score(run: dict, length: str) -> list[float] | str:
    return run["scores"][length] if run["status"] == "ok" else run["status"]


def by_seed(config: TasksConfig, entry: dict, task: str, which: int, beyond: bool) -> dict | str:
    """Accuracy of each seed, at the training length or over those beyond; or why there is none."""
    lengths = config.lengths if beyond else (config.length,)
    scores = [entry["scores"][task][str(n)] for n in lengths]
    words = [x for score in scores for x in score.values() if isinstance(x, str)]
    if words:
        return max(words, key=["not defined", "not finite", "diverged"].index)
    return {seed: float(np.mean([s[seed][which] for s in scores])) for seed in scores[0]}


def cell(config: TasksConfig, entry: dict, task: str, which: int, beyond: bool) -> float | str:
    """The mean over seeds of `by_seed`, or its words."""
    values = by_seed(config, entry, task, which, beyond)
    return values if isinstance(values, str) else float(np.mean([*values.values()]))


def pairs(config: TasksConfig, entries: list[dict]) -> dict[str, list[tuple[dict, dict]]]:
    """What is compared: each kind of positions with the first, each encoding with `reference`."""
    first = {e["spec"]: e for e in entries if e["positions"] == label(config)[config.positions[0]]}
    other = [e for e in entries if e["spec"] in first and e is not first[e["spec"]]]
    reference = first.get(config.reference)
    schemes = [e for e in first.values() if reference and e is not reference]
    return {
        "positions": [(e, first[e["spec"]]) for e in other],
        "encodings": [(e, reference) for e in schemes if reference],
    }


def difference(config: TasksConfig, one: dict, other: dict) -> dict:
    """Points of tokens right beyond, of one less the other, paired by seed; the tasks without it.

    Each seed's mean is over the tasks that have a number in both.
    """
    without, both = {}, []
    for task in config.tasks:
        sides = [by_seed(config, e, task, 0, True) for e in (one, other)]
        words = [x for x in sides if isinstance(x, str)]
        if words:
            without[task] = words[0]
        else:
            both.append(sides)
    values = [np.mean([100 * (a[s] - b[s]) for a, b in both]) for s in both[0][0]] if both else []
    found = statistics.estimate(values) if values else None
    return {"of": one["name"], "minus": other["name"], "estimate": found, "without": without}


def judged(differences: list[dict]) -> list[dict]:
    """With their interval, and in words whether each was shown, after Holm over all of them."""
    tested = {d["of"]: d["estimate"].p for d in differences if d["estimate"]}
    adjusted, found = statistics.holm(tested), []
    for given in differences:
        x, row = given["estimate"], {k: v for k, v in given.items() if k != "estimate"}
        if x is None:
            found.append({**row, "verdict": "no task has a number in both"})
            continue
        p = adjusted[given["of"]]
        kind, words = statistics.judge(x, p, "")
        if kind != statistics.NONE:
            more = "more" if kind == statistics.HIGHER else "fewer"
            words = f"{more} tokens right (p = {p:.3f})"
        bounds = {"points": x.mean, "low": x.low, "high": x.high}
        row |= {name: None if np.isnan(v) else v for name, v in bounds.items()}
        found.append({**row, "seeds": x.n, "verdict": words})
    return found


def told(row: dict) -> str:
    """A line for the terminal."""
    interval = "" if row.get("low") is None else f" [{row['low']:+.1f}, {row['high']:+.1f}]"
    points = f"{row['points']:+.1f} points{interval}: " if "points" in row else ""
    missing = ", ".join(f"{task} ({why})" for task, why in row["without"].items())
    without = f"; without {missing}" if missing else ""
    return f"{row['of']} minus {row['minus']}: {points}{row['verdict']}{without}"


def table(config: TasksConfig, entries: list[dict]) -> rich.table.Table:
    """Tokens right beyond the training length, each encoding on each task."""
    over = f"Mean over lengths {config.lengths} and {config.seeds} seeds"
    caption = f"{over}; trained to {config.length}, at one learning rate."
    shown = rich.table.Table("task", title="Tokens right at longer lengths", caption=caption)
    for entry in entries:
        shown.add_column(entry["name"], justify="right")
    for task in config.tasks:
        values = [cell(config, entry, task, 0, True) for entry in entries]
        shown.add_row(task, *(x if isinstance(x, str) else f"{x:.3f}" for x in values))
    return shown


@plotting.styled
def figure(config: TasksConfig, entries: list[dict], rows: list[tuple]) -> plotting.Drawing:
    """Encoding × task, at the training length and beyond it."""
    width, height = max(6.4, 2.6 + 0.62 * len(config.tasks)), 1.0 + 0.32 * len(entries)
    drawn, all_axes = plotting.canvas(width, 3 * height + 1.6, len(PANELS))
    for axes, (name, which, beyond) in zip(all_axes, PANELS, strict=True):
        cells = [[cell(config, e, task, which, beyond) for task in config.tasks] for e in entries]
        values = [[np.nan if isinstance(x, str) else x for x in row] for row in cells]
        axes.imshow(values, cmap=plotting.RISING, vmin=0, vmax=1, aspect="auto")
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                text = value.replace(" ", "\n") if isinstance(value, str) else f"{value:.2f}"
                dark = not isinstance(value, str) and value > 0.6
                colour = "white" if dark else plotting.INK
                axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=colour)
        axes.set_yticks(range(len(entries)), [plotting.label(e["name"], 28) for e in entries])
        axes.set_xticks([])
        axes.set(title=name)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    names = [task.replace("_", " ") for task in config.tasks]
    all_axes[-1].set_xticks(range(len(names)), names, rotation=40, ha="right")
    alt = "Accuracy of each encoding on each task, at the training length and at longer ones"
    return plotting.Drawing("tasks", drawn, HEADER, rows, alt)


def listed(entries: list[dict]) -> list[tuple]:
    """Every number, one a row of the CSV."""
    return [
        (e["name"], e["positions"], task, length, seed)
        + ((None, None, value) if isinstance(value, str) else (*value, ""))
        for e in entries
        for task, scores in e["scores"].items()
        for length, seeds in scores.items()
        for seed, value in seeds.items()
    ]


def digests(config: TasksConfig, saved: dict) -> dict:
    """Of the questions of each task, to be saved with those of tasks that ran before.

    Raises:
      ValueError: a task generates other questions than when the workdir was begun.
    """
    before = saved.get("digests", {})
    now = {name: tasks.TASKS[name].digest for name in config.tasks}
    for name, digest in now.items():
        if before.get(name, digest) != digest:
            raise ValueError(f"tasks: {name!r} has other questions now; use a new --config.workdir")
    return {"digests": before | now}


def main(config: TasksConfig) -> None:
    """Runs what is missing, then shows and writes what was found."""
    workdir = Path(config.workdir)
    names = {entry: entry for entry in config.entries()}
    work, also = functools.partial(run, config), functools.partial(digests, config)
    with finished(config, BINDING, names, work, also) as (now, runs):
        entries = collect(config, runs)
        found = {
            family: judged([difference(config, *pair) for pair in listed])
            for family, listed in pairs(config, entries).items()
        }
        plotting.save(figure(config, entries, listed(entries)), workdir)
        about = together(x for e in runs.values() for task in e.values() for x in task.values())
        about |= {"config": now, "encodings": entries, "differences": found}
        save_json(workdir / "results.json", about)
    rich.print(table(config, entries))
    for row in (row for family in found.values() for row in family):
        print(told(row))
    if config.reference not in config.encodings:
        print(f"No two encodings are compared: reference={config.reference!r} was not run.")
    print(f"Results: {workdir / 'results.json'}, {workdir / 'tasks.png'}")


if __name__ == "__main__":
    launch.run(main, "configs/tasks.py", TasksConfig)
