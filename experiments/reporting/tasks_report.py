"""What `tasks` found, for the eye and in words: accuracies, differences, a table and a map."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import rich.table

from experiments.reporting import plotting, statistics
from experiments.running.run_names import short as brief
from experiments.running.run_names import title
from experiments.running.sweep_configs import TasksConfig
from pe_jax import position_schemes

HEADER = (
    "encoding",
    "positions",
    "task",
    "length",
    "seed",
    "token_accuracy",
    "exact_match",
    "learning_rate",
    "encoding_rate",
    "note",
)
FIXED = "a fixed answer"
PANELS = (  # title, which of a score's two numbers, whether beyond the training length
    ("Tokens right at the longest length trained on", 0, False),
    ("Tokens right at longer ones, mean over lengths", 0, True),
    ("Whole answers right at longer ones, mean over lengths", 1, True),
)


def label(config: TasksConfig) -> dict[str, str]:
    """What kinds of positions are called: by their name where that tells them apart."""
    short = [brief(positions) for positions in config.positions]
    unique = len({*short}) == len(short)
    return dict(zip(config.positions, short if unique else config.positions, strict=True))


def collect(config: TasksConfig, runs: dict, fixed: Callable[[str], dict]) -> list[dict]:
    """One entry an encoding and kind of positions: scores by task, length and seed.

    The first is what `fixed` gives by task, of the name FIXED.
    """
    called = label(config)
    entries = [(spec, called[positions]) for spec, positions in runs]
    lengths, found = [str(n) for n in (config.length, *config.lengths)], []
    for (spec, positions), by_task in runs.items():
        scores = {
            task: {n: {s: _score(run, n) for s, run in by_seed.items()} for n in lengths}
            for task, by_seed in by_task.items()
        }
        pattern = dataclasses.replace(config.model, encoding=spec).pattern
        still = position_schemes.choose(positions, pattern) == position_schemes.Contiguous()
        plain = called[positions] if still else "contiguous"
        name = title(spec, called[positions], entries, plain)
        firsts = {task: next(iter(by.values())) for task, by in by_task.items()}
        rates = {t: [run["learning_rate"], run["encoding_rate"]] for t, run in firsts.items()}
        found.append({"name": name, "spec": spec, "positions": positions, "scores": scores})
        found[-1]["rates"] = rates
    guess = {task: {n: {"": value} for n, value in fixed(task).items()} for task in config.tasks}
    nothing = {"name": FIXED, "spec": "", "positions": "", "rates": {}}
    return [{**nothing, "scores": guess}, *found]


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


def referred(config: TasksConfig) -> str | None:
    """The spec of the reference, which may be called by its scheme; None if it does not run."""
    found = [s for s in config.encodings if config.reference in (s, brief(s))]
    return found[0] if len(found) == 1 else None


def pairs(config: TasksConfig, entries: list[dict]) -> dict[str, list[tuple[dict, dict]]]:
    """What is compared: each kind of positions with the first, each encoding with `reference`."""
    first = {e["spec"]: e for e in entries if e["positions"] == label(config)[config.positions[0]]}
    other = [e for e in entries if e["spec"] in first and e is not first[e["spec"]]]
    reference = first.get(referred(config))
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
    seeds = both[0][0] if both else ()
    values = [float(np.mean([100 * (a[s] - b[s]) for a, b in both])) for s in seeds]
    found = statistics.estimate(values) if values else None
    return {"of": one["name"], "minus": other["name"], "estimate": found, "without": without}


def judged(differences: list[dict], same: dict[str, str | None] | None = None) -> list[dict]:
    """With their interval, and in words whether each was shown, after Holm over all of them.

    Those without a number count too; `same`, as `statistics.copies` gives it, does not.
    """
    estimates = {d["of"]: d["estimate"] for d in differences}
    tested, found = statistics.family(estimates, same)[0], []
    for given in differences:
        row = {k: v for k, v in given.items() if k != "estimate"}
        if given["of"] not in tested:
            found.append({**row, "verdict": "no task has a number in both"})
            continue
        x = tested[given["of"]]
        kind, reason = statistics.judge(x)
        if kind in (statistics.HIGHER, statistics.LOWER):
            more = "more" if kind == statistics.HIGHER else "fewer"
            words = f"{more} tokens right (p = {x.holm:.3f})"
        else:
            what = "no difference" if kind == statistics.SAME else "inconclusive"
            words = what + f" ({reason})" * bool(reason)
        bounds = {"points": x.estimate.mean, "low": x.low, "high": x.high}
        row |= {name: None if np.isnan(v) else v for name, v in bounds.items()}
        found.append({**row, "seeds": x.estimate.n, "verdict": words})
    return found


def differences(config: TasksConfig, entries: list[dict]) -> dict[str, list[dict]]:
    """All of `pairs`, judged: by family, which Holm corrects for apart."""
    return {
        family: judged([difference(config, *pair) for pair in listed], _same(listed))
        for family, listed in pairs(config, entries).items()
    }


def _same(listed: list[tuple[dict, dict]]) -> dict[str, str | None]:
    """Comparisons whose scores, of both sides, are those of one before; None: of the other side."""
    first: dict[str, str] = {}
    found: dict[str, str | None] = {}
    for one, other in listed:
        sides = [json.dumps(entry["scores"], sort_keys=True) for entry in (one, other)]
        before = first.setdefault(json.dumps(sides), one["name"])
        if sides[0] == sides[1] or before != one["name"]:
            found[one["name"]] = None if sides[0] == sides[1] else before
    return found


def lines(config: TasksConfig, found: dict[str, list[dict]]) -> list[str]:
    """The differences for the terminal."""
    listed = [told(row) for family in found.values() for row in family]
    if not found["encodings"]:
        listed.append(f"No encodings are compared with reference={config.reference!r}.")
    return listed


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
    caption = f"{over}; trained to {config.length}, {chosen(config, entries)}."
    shown = rich.table.Table("task", title="Tokens right at longer lengths", caption=caption)
    for entry in entries:
        shown.add_column(entry["name"], justify="right")
    for task in config.tasks:
        values = [cell(config, entry, task, 0, True) for entry in entries]
        shown.add_row(task, *(x if isinstance(x, str) else f"{x:.3f}" for x in values))
    return shown


def chosen(config: TasksConfig, entries: list[dict]) -> str:
    """In words, at what learning rates."""
    pairs = [pair for entry in entries for pair in entry["rates"].values()]
    rates, multiples = ([float(pair[k]) for pair in pairs] for k in (0, 1))
    said = "at one learning rate"
    if config.rates:
        each = _counted(config.rates, rates)
        said = f"at the best learning rate of each encoding and task ({each})"
    if config.encoding_rates:
        each = _counted(config.encoding_rates, multiples)
        said += f", encodings' own parameters at the best multiple of it ({each})"
    elif config.optimizer.encoding_rate != 1:
        said += f", encodings' own parameters at {config.optimizer.encoding_rate:g} times that"
    return said


def _counted(values: Iterable[float], found: list[float]) -> str:
    count = Counter(found)
    return ", ".join(f"{value:g} in {count[value]}" for value in sorted(map(float, values)))


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
        axes.set_title(name, wrap=True)
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
        + ((None, None) if isinstance(value, str) else (*value,))
        + (*e["rates"].get(task, (None, None)), value if isinstance(value, str) else "")
        for e in entries
        for task, scores in e["scores"].items()
        for length, seeds in scores.items()
        for seed, value in seeds.items()
    ]
