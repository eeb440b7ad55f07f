"""The report of a comparison on tasks: accuracies, differences, a table and a map."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import rich.table

from experiments.reporting import accuracy_differences, plotting, statistics
from experiments.reporting.accuracy_differences import Difference, judged, line
from experiments.running.configs.tasks import MEASURES, TasksConfig
from experiments.running.run_names import find, short_names, title
from pe_jax import position_schemes

HEADER = (
    *("encoding", "positions", "task", "length", "seed", "token_accuracy", "exact_match"),
    *("learning_rate", "encoding_rate", "note"),
)
FIXED = "a fixed answer"
MEASURED = {"tokens": "tokens", "answers": "whole answers"}
PANELS = (  # title, which of a score's two numbers, whether beyond the training length
    ("Tokens right at the longest length trained on", 0, False),
    ("Tokens right at longer ones, mean over lengths", 0, True),
    ("Whole answers right at longer ones, mean over lengths", 1, True),
)


def collect(config: TasksConfig, runs: dict, fixed: Callable[[str], dict]) -> list[dict]:
    """One entry per encoding and kind of positions: scores by task, length and seed.

    The first entry is named FIXED, with the scores of `fixed` for each task.
    """
    names = short_names(config.positions)
    entries = [(spec, names[positions]) for spec, positions in runs]
    lengths = [str(n) for n in (config.length, *config.lengths)]
    collected = []
    for (spec, positions), by_task in runs.items():
        pattern = dataclasses.replace(config.model, encoding=spec).pattern
        scheme = position_schemes.choose(positions, pattern)
        is_contiguous = scheme == position_schemes.Contiguous()
        plain = names[positions] if is_contiguous else "contiguous"
        scores, rates = {}, {}
        for task, runs_of in by_task.items():
            scores[task] = {
                n: {
                    s: r["scores"][n] if r["status"] == "ok" else r["status"]
                    for s, r in runs_of.items()
                }
                for n in lengths
            }
            first = next(iter(runs_of.values()))
            rates[task] = [first["learning_rate"], first["encoding_rate"]]
        name = title(spec, names[positions], entries, plain)
        about = {"name": name, "spec": spec, "positions": positions}
        collected.append({**about, "scores": scores, "rates": rates})
    scores = {task: {n: {"": value} for n, value in fixed(task).items()} for task in config.tasks}
    fixed_entry = {"name": FIXED, "spec": "", "positions": "", "rates": {}, "scores": scores}
    return [fixed_entry, *collected]


def by_seed(entry: dict, task: str, which: int, lengths: Iterable[int]) -> dict | str:
    """Accuracy of each seed, the mean over lengths; or why there is none."""
    scores = [entry["scores"][task][str(n)] for n in lengths]
    words = [x for score in scores for x in score.values() if isinstance(x, str)]
    if words:
        return max(words, key=["not defined", "not finite", "diverged", "failed"].index)
    return {seed: float(np.mean([s[seed][which] for s in scores])) for seed in scores[0]}


def cell(config: TasksConfig, entry: dict, task: str, which: int, beyond: bool) -> float | str:
    """The mean over seeds at the training length or over those beyond, or why there is none."""
    values = by_seed(entry, task, which, config.lengths if beyond else (config.length,))
    return values if isinstance(values, str) else float(np.mean([*values.values()]))


def pairs(config: TasksConfig, entries: list[dict]) -> dict[str, list[tuple[dict, dict]]]:
    """Pairs to compare: each kind of positions with the first, each encoding with `reference`."""
    first_positions = short_names(config.positions)[config.positions[0]]
    first = {e["spec"]: e for e in entries if e["positions"] == first_positions}
    moved = [e for e in entries if e["spec"] in first and e is not first[e["spec"]]]
    reference = first.get(find("reference", config.reference, config.encodings))
    schemes = [e for e in first.values() if reference and e is not reference]
    return {
        "positions": [(e, first[e["spec"]]) for e in moved],
        "encodings": [(e, reference) for e in schemes if reference],
    }


def difference(
    config: TasksConfig, entry: dict, other: dict, tasks: Iterable[str] = ()
) -> Difference:
    """The difference of two entries in the primary metric, paired by seed; of all tasks if none."""
    which, lengths = MEASURES.index(config.measure), config.primary or config.lengths
    return accuracy_differences.difference(
        entry, other, tasks or config.tasks, lambda e, task: by_seed(e, task, which, lengths)
    )


def differences(config: TasksConfig, entries: list[dict]) -> dict[str, list[dict]]:
    """All of `pairs`, judged: by family, each corrected separately.

    Of encodings there is a family for the mean over tasks, and one for each task if there are
    several, "encodings, TASK".
    """
    judgements = {}
    for family, compared in pairs(config, entries).items():
        several = config.tasks if family == "encodings" and len(config.tasks) > 1 else ()
        for task in ("", *several):
            outcomes = {}
            for entry, other in compared:
                ours, theirs = (_outcome(e, task) for e in (entry, other))
                outcomes[entry["name"]] = "same" if ours == theirs else (ours, theirs)
            found = [difference(config, *pair, [task] if task else ()) for pair in compared]
            same = statistics.copies(outcomes, "same")
            name = f"{family}, {task}" if task else family
            judgements[name] = judged(found, MEASURED[config.measure], same)
    return judgements


def _outcome(entry: dict, task: str) -> str:
    """The scores of a task, or of all, as text."""
    scores = entry["scores"]
    return json.dumps(scores[task] if task else scores, sort_keys=True)


def lines(config: TasksConfig, differences: dict[str, list[dict]]) -> list[str]:
    """The differences for the terminal."""
    printed = []
    for family, rows in differences.items():
        _, _, task = family.partition(", ")
        printed += [f"{task}: {line(row)}" if task else line(row) for row in rows]
    if not differences["encodings"]:
        printed.append(f"No encodings are compared with reference={config.reference!r}.")
    return printed


def table(config: TasksConfig, entries: list[dict]) -> rich.table.Table:
    """Tokens right beyond the training length, each encoding on each task."""
    over = f"Mean over lengths {config.lengths} and {config.seeds} seeds"
    caption = f"{over}; trained to {config.length}, {rates_used(config, entries)}."
    accuracies = rich.table.Table("task", title="Tokens right at longer lengths", caption=caption)
    for entry in entries:
        accuracies.add_column(entry["name"], justify="right")
    for task in config.tasks:
        values = [cell(config, entry, task, 0, True) for entry in entries]
        accuracies.add_row(task, *(x if isinstance(x, str) else f"{x:.3f}" for x in values))
    return accuracies


def rates_used(config: TasksConfig, entries: list[dict]) -> str:
    """Describes the learning rates that were used."""
    pairs = [pair for entry in entries for pair in entry["rates"].values()]
    rates, multiples = ([float(pair[k]) for pair in pairs] for k in (0, 1))
    words = "at one learning rate"
    if config.rates:
        counts = _counted((*config.rates, *rates), rates)
        words = f"at the best learning rate of each encoding and task ({counts})"
    if config.encoding_rates:
        counts = _counted((*config.encoding_rates, *multiples), multiples)
        words += f", encodings' own parameters at the best multiple of it ({counts})"
    elif config.optimizer.encoding_rate != 1:
        words += f", encodings' own parameters at {config.optimizer.encoding_rate:g} times that"
    return words


def _counted(values: Iterable[float], used: list[float]) -> str:
    count = Counter(used)
    return ", ".join(f"{value:g} in {count[value]}" for value in sorted({*map(float, values)}))


@plotting.styled
def figure(config: TasksConfig, entries: list[dict], rows: list[tuple]) -> plotting.Drawing:
    """Encoding × task, at the training length and beyond it."""
    width, height = max(6.4, 2.6 + 0.62 * len(config.tasks)), 1.0 + 0.32 * len(entries)
    title = f"Accuracy: trained to {config.length} symbols, tested to {max(config.lengths)}"
    drawn, all_axes = plotting.canvas(width, 3 * height + 2.4, len(PANELS), title=title)
    for axes, (name, which, beyond) in zip(all_axes, PANELS, strict=True):
        cells = [[cell(config, e, task, which, beyond) for task in config.tasks] for e in entries]
        plotting.numbers(axes, [[np.nan if isinstance(x, str) else x for x in r] for r in cells])
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                if isinstance(value, str):
                    words = {"ha": "center", "va": "center", "fontsize": 7.5}
                    axes.text(x, y, value.replace(" ", "\n"), **words, color=plotting.INK)
        axes.set_yticks(range(len(entries)), plotting.labels([e["name"] for e in entries], 28))
        axes.set_xticks([])
        axes.set_title(name, wrap=True, fontsize=10)
    names = [task.replace("_", " ") for task in config.tasks]
    all_axes[-1].set_xticks(range(len(names)), names, rotation=40, ha="right")
    plotting.colour_bar(drawn, all_axes, "accuracy")
    alt = f"Accuracy of each encoding on each task, at the training length and beyond. {title}"
    return plotting.Drawing("tasks", drawn, HEADER, rows, alt)


def csv_rows(entries: list[dict]) -> list[tuple]:
    """Every number, one per row of the CSV."""
    return [
        (e["name"], e["positions"], task, length, seed)
        + ((None, None) if isinstance(value, str) else (*value,))
        + (*e["rates"].get(task, (None, None)), value if isinstance(value, str) else "")
        for e in entries
        for task, scores in e["scores"].items()
        for length, seeds in scores.items()
        for seed, value in seeds.items()
    ]
