"""The report of a comparison on tasks: accuracies, differences, a table and a map."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import rich.table

from experiments.reporting import plotting
from experiments.reporting.accuracy_differences import judged, line
from experiments.reporting.results import Scheme, brief
from experiments.running.configs.tasks import MEASURES, TasksConfig
from experiments.running.files.run_names import short_names, title
from experiments.running.files.table import Row, Test
from pe_jax import position_schemes

FIXED = "a fixed answer"
MEASURED = {"tokens": "tokens", "answers": "whole answers"}
PANELS = (  # title, measure, whether beyond the training length
    ("Tokens right at the longest length trained on", "tokens", False),
    ("Tokens right at longer ones, mean over lengths", "tokens", True),
    ("Whole answers right at longer ones, mean over lengths", "answers", True),
)


def names(config: TasksConfig) -> dict[tuple[str, str], str]:
    """(encoding, positions) → the name of that scheme; contiguous positions are not in it."""
    short = short_names(config.positions)
    entries, by_entry = [(spec, short[positions]) for spec, positions in config.entries()], {}
    for spec, positions in config.entries():
        scheme = position_schemes.choose(
            positions, dataclasses.replace(config.model, encoding=spec).pattern
        )
        is_contiguous = scheme == position_schemes.Contiguous()
        plain = short[positions] if is_contiguous else "contiguous"
        by_entry[spec, positions] = title(spec, short[positions], entries, plain)
    return by_entry


def rows(config: TasksConfig, runs: dict, fixed: dict[str, dict]) -> Iterator[Row]:
    """The table of all runs; first, as a scheme named FIXED, the scores of `fixed` by task."""
    for task, scores in fixed.items():
        yield from _scores(Row(FIXED, "", None, None, None, task, 0, None, None), scores)
    short = short_names(config.positions)
    for (spec, positions), name in names(config).items():
        for task, by_seed in runs.get((spec, positions), {}).items():
            for seed, run in by_seed.items():
                rates = run["learning_rate"], run["encoding_rate"]
                row = Row(name, short[positions], seed, *rates, task, 0, None, None)
                lost = dict.fromkeys((config.length, *config.lengths), run["status"])
                yield from _scores(row, run["scores"] if run["status"] == "ok" else lost)


def _scores(row: Row, scores: dict) -> Iterator[Row]:
    """The row for each measure and length; `scores` are those of a run, or words."""
    for length, found in scores.items():
        for k, measure in enumerate(MEASURES):
            cell = {"status": found} if isinstance(found, str) else {"value": found[k]}
            yield row._replace(test=f"{row.test}: {measure}", length=int(length), **cell)


def tests(task: str, measure: str, lengths: Iterable[int]) -> list[Test]:
    """A task's tests in the table."""
    return [(f"{task}: {measure}", length) for length in lengths]


def cell(config: TasksConfig, scheme: Scheme, task: str, measure: str, beyond: bool) -> float | str:
    """The mean over seeds at the training length or over those beyond, or why there is none."""
    lengths = config.lengths if beyond else (config.length,)
    values, problem = scheme.means(tests(task, measure, lengths))
    return brief(problem) if problem else float(np.mean([*values.values()]))


def pairs(config: TasksConfig, schemes: Sequence[Scheme]) -> dict[str, list[tuple[Scheme, Scheme]]]:
    """Pairs to compare: each kind of positions with the first, each encoding with `reference`."""
    by_name = {scheme.name: scheme for scheme in schemes}
    found = {entry: by_name[name] for entry, name in names(config).items() if name in by_name}
    first = {spec: s for (spec, at), s in found.items() if at == config.positions[0]}
    reference = first.get(config.reference)
    return {
        "positions": [
            (s, first[spec])
            for (spec, _), s in found.items()
            if spec in first and s is not first[spec]
        ],
        "encodings": [(s, reference) for s in first.values() if reference and s is not reference],
    }


def differences(config: TasksConfig, schemes: Sequence[Scheme]) -> dict[str, list[dict]]:
    """All of `pairs`, judged by the primary metric: by family, each corrected separately.

    Of encodings there is a family for the mean over tasks, and one for each task if there are
    several, "encodings, TASK".
    """
    judgements, lengths = {}, config.primary or config.lengths
    for family, compared in pairs(config, schemes).items():
        several = config.tasks if family == "encodings" and len(config.tasks) > 1 else ()
        for task in ("", *several):
            listed = [task] if task else config.tasks
            primary = {name: tests(name, config.measure, lengths) for name in listed}
            every = (config.length, *config.lengths)
            alike = [t for name in listed for m in MEASURES for t in tests(name, m, every)]
            judgements[f"{family}, {task}" if task else family] = judged(
                compared, primary, MEASURED[config.measure], alike
            )
    return judgements


def lines(config: TasksConfig, differences: dict[str, list[dict]]) -> list[str]:
    """The differences for the terminal."""
    printed = []
    for family, listed in differences.items():
        _, _, task = family.partition(", ")
        printed += [f"{task}: {line(row)}" if task else line(row) for row in listed]
    if not differences["encodings"]:
        printed.append(f"No encodings are compared with reference={config.reference!r}.")
    return printed


def table(config: TasksConfig, schemes: Sequence[Scheme], rows: Sequence[Row]) -> rich.table.Table:
    """Tokens right beyond the training length, each encoding on each task."""
    over = f"Mean over lengths {config.lengths} and {config.seeds} seeds"
    caption = f"{over}; trained to {config.length}, {rates_used(config, rows)}."
    accuracies = rich.table.Table("task", title="Tokens right at longer lengths", caption=caption)
    for scheme in schemes:
        accuracies.add_column(scheme.name, justify="right")
    for task in config.tasks:
        values = [cell(config, scheme, task, "tokens", True) for scheme in schemes]
        accuracies.add_row(task, *(x if isinstance(x, str) else f"{x:.3f}" for x in values))
    return accuracies


def rates_used(config: TasksConfig, rows: Sequence[Row]) -> str:
    """Describes the learning rates that were used."""
    trained = {(row.scheme, row.test.partition(":")[0]): row for row in rows if row.learning_rate}
    words = "at one learning rate"
    if config.rates:
        counts = _counted(config.rates, [row.learning_rate for row in trained.values()])
        words = f"at the best learning rate of each encoding and task ({counts})"
    if config.encoding_rates:
        counts = _counted(config.encoding_rates, [row.encoding_rate for row in trained.values()])
        words += f", encodings' own parameters at the best multiple of it ({counts})"
    elif config.optimizer.encoding_rate != 1:
        words += f", encodings' own parameters at {config.optimizer.encoding_rate:g} times that"
    return words


def _counted(tried: Iterable[float], used: Sequence[float | None]) -> str:
    values = sorted({*map(float, tried), *filter(None, used)})
    return ", ".join(f"{value:g} in {Counter(used)[value]}" for value in values)


@plotting.styled
def figure(config: TasksConfig, schemes: Sequence[Scheme]) -> plotting.Drawing:
    """Encoding × task, at the training length and beyond it."""
    width, height = max(6.4, 2.6 + 0.62 * len(config.tasks)), 1.0 + 0.32 * len(schemes)
    title = f"Accuracy: trained to {config.length} symbols, tested to {max(config.lengths)}"
    drawn, all_axes = plotting.canvas(width, 3 * height + 2.4, len(PANELS), title=title)
    for axes, (name, measure, beyond) in zip(all_axes, PANELS, strict=True):
        cells = [[cell(config, s, task, measure, beyond) for task in config.tasks] for s in schemes]
        plotting.numbers(axes, [[np.nan if isinstance(x, str) else x for x in r] for r in cells])
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                if isinstance(value, str):
                    words = {"ha": "center", "va": "center", "fontsize": 7.5}
                    axes.text(x, y, value.replace(" ", "\n"), **words, color=plotting.INK)
        axes.set_yticks(range(len(schemes)), plotting.labels([s.name for s in schemes], 28))
        axes.set_xticks([])
        axes.set_title(name, wrap=True, fontsize=10)
    names = [task.replace("_", " ") for task in config.tasks]
    all_axes[-1].set_xticks(range(len(names)), names, rotation=40, ha="right")
    plotting.colour_bar(drawn, all_axes, "accuracy")
    alt = f"Accuracy of each encoding on each task, at the training length and beyond. {title}"
    return plotting.Drawing("tasks", drawn, alt=alt)
