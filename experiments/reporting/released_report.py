"""The report of a released model at longer contexts: losses, key tokens, questions, short text.

The unit of all statistics is the document: one model has no seeds.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import rich.table

from experiments.reporting import plotting, results, statistics
from experiments.reporting.accuracy_differences import judged
from experiments.reporting.extension_report import (
    draw_losses,
    judged_accuracies,
    judged_losses,
    table_by_length,
    table_of_verdicts,
)
from experiments.reporting.results import Run, Scheme, brief, told_apart
from experiments.reporting.verdicts import Verdict, decide
from experiments.running.configs.released import SHORT, ReleasedConfig
from experiments.running.extension.haystacks import TASKS
from experiments.running.files.table import Numbers, Row, Test

LOSS, SHORT_TEXT, KEYS = "loss", "short text", "key tokens"  # tests of the table
GAIN, MOST = 2.0, 2.0  # nats: LongPPL's α, and -β


def key_tokens(short: np.ndarray, long: np.ndarray) -> np.ndarray:
    """Which tokens need the long context: those that LongPPL counts.

    They gain more than 2 nats by it, and are then likelier than e^-2: α and β of Fang et al.,
    "What is Wrong with Perplexity for Long-context Language Modeling?", arXiv 2410.23771. The loss
    over these alone is LongPPL's logarithm. There another model finds them, with 4,096 tokens and
    more for a short context; here it is the model as it is, at its trained length and at the
    shortest of the config.

    Args:
      short: losses after a short context [T].
      long: after a long one [T].
    """
    return (short - long > GAIN) & (long < MOST)


def _numbers(by_test: Mapping[str, Mapping[str, dict]], keys: np.ndarray) -> Numbers:
    """(test, length) → one number, or why there is none, of one method on one document."""
    numbers: Numbers = {}
    for test, by_length in by_test.items():
        for length, result in by_length.items():
            if result["status"] != "ok":
                names = TASKS[test].tests if test in TASKS else (test,)
                numbers |= {(name, int(length)): result["status"] for name in names}
                continue
            for name, values in result["numbers"].items():
                mean = np.mean(np.asarray(values, np.float64), keepdims=True)
                numbers[name, int(length)] = mean if np.isfinite(mean).all() else "not finite"
            if test == LOSS:
                losses = np.asarray(result["numbers"][LOSS], np.float64)[keys]
                mean = losses.mean(keepdims=True) if keys.any() else "no key tokens"
                numbers[KEYS, int(length)] = mean
    return numbers


def _keys(config: ReleasedConfig, trained: int, by_test: Mapping) -> np.ndarray:
    """The key tokens of a document, from what the model as it is made of it: bool [targets]."""
    short, *_ = lengths = [n for n in config.lengths if n <= trained] or [0]
    found = [by_test.get(LOSS, {}).get(str(n), {}).get("numbers") for n in (short, lengths[-1])]
    if None in found:
        return np.zeros(config.targets, bool)
    return key_tokens(*(np.asarray(numbers[LOSS]) for numbers in found))


@dataclasses.dataclass(frozen=True)
class ReleasedPage:
    """The results of a released model; its trained length, and the target."""

    config: ReleasedConfig
    length: int
    target: int
    schemes: tuple[Scheme, ...]
    reference: str
    tasks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        config: ReleasedConfig,
        length: int,
        entries: list[dict],
        reference: str,
        tasks: tuple[str, ...],
    ) -> "ReleasedPage":
        """The page of `entries` of results.json, each with a run for each document."""
        by_document = next(e["documents"] for e in entries if e["spec"] == "rope")
        keys = {n: _keys(config, length, by_test) for n, by_test in by_document.items()}
        schemes = []
        for index, entry in enumerate(entries):
            runs = {
                int(n): Run(int(n), numbers=_numbers(by_test, keys[n]))
                for n, by_test in entry["documents"].items()
            }
            found = Scheme(entry["name"], entry["encoding"], index, runs, unit="document")
            schemes.append(found)
        target = round(config.factor * length)
        return cls(config, length, target, told_apart(schemes), reference, tasks)

    @property
    def keyed(self) -> tuple[Scheme, ...]:
        """The schemes on the documents that have key tokens."""
        lost = {
            n
            for scheme in self.schemes
            for n, run in scheme.runs.items()
            if "no key tokens" in [run.measured(KEYS, m) for m in self.config.lengths]
        }
        return tuple(
            dataclasses.replace(s, runs={n: run for n, run in s.runs.items() if n not in lost})
            for s in self.schemes
        )

    def rows(self) -> Iterator[Row]:
        """The table of all numbers; documents take the place of seeds."""
        names = (LOSS, KEYS, *self.tasks, *(f"{task}: loss" for task in self.tasks))
        tests = [(name, n) for name in names for n in self.config.lengths]
        yield from results.rows(self.schemes, [(SHORT_TEXT, SHORT), *tests])

    def tables(self) -> list[rich.table.Table]:
        """Losses, key tokens and tasks by length, short text, and verdicts at the target."""
        config, targets = self.config, f"{self.config.targets:,}"
        count = len(self.schemes[0].runs)
        over = f"mean ± standard deviation over {count} documents" if count > 1 else "one document"
        trained = f"trained at {self.length:,}, extended to {self.target:,}"

        def shown(test: str):
            def cell(scheme: Scheme, length: int) -> str:
                found = scheme.cell(test, length)
                values = [*found.values.values()]
                return brief(found.problem) or (statistics.shown(values, 3) if values else "—")

            return cell

        losses = f"Loss of the same last {targets} tokens by context, nats per token; {trained}"
        keys = f"The same over the tokens that need a long context (LongPPL's logarithm); {trained}"
        tables = [
            table_by_length(losses, self.schemes, config.lengths, shown(LOSS)),
            table_by_length(keys, self.keyed, config.lengths, shown(KEYS)),
            table_by_length("Loss on short text", self.schemes, [SHORT], shown(SHORT_TEXT)),
        ]
        for length in config.lengths if self.tasks else ():
            title = f"Answers right at {length:,} tokens; {trained}"
            table = rich.table.Table("encoding", *self.tasks, title=title)
            for scheme in self.schemes:
                table.add_row(scheme.name, *(shown(task)(scheme, length) for task in self.tasks))
            tables.append(table)
        for table in tables:
            table.caption, table.min_width = f"{over.capitalize()}.", 90
        tables[1].caption = f"Mean over {len(self.keyed[0].runs)} documents that have such tokens."
        minus = f"at {self.target:,}, minus that of {self.reference}"
        verdicts = judged_losses(self.verdicts())
        tables.append(table_of_verdicts(f"Loss {minus}", "document", verdicts))
        if self.tasks:
            title = f"Answers right {minus}, points, mean over tests"
            judged = judged_accuracies(self.reference, self.differences())
            tables.append(table_of_verdicts(title, "document", judged))
        return tables

    def verdicts(self) -> list[Verdict]:
        """Every method's loss against the reference at the target."""
        return decide(self.schemes, self.reference, LOSS, self.target)

    def differences(self) -> list[dict]:
        """Answers that are right at the target, minus the reference's, in points."""
        reference = next((s for s in self.schemes if s.name == self.reference), None)
        pairs = [(s, reference) for s in self.schemes if reference and s is not reference]
        target: dict[str, list[Test]] = {task: [(task, self.target)] for task in self.tasks}
        return judged(pairs, target, "answers") if pairs else []

    def drawings(self) -> list[plotting.Drawing]:
        """Loss against the context, and a map of the tasks."""
        return [self.losses(), *([self.map()] if self.tasks else ())]

    @plotting.styled
    def losses(self) -> plotting.Drawing:
        """Loss of the last tokens against the length of the context; one dot per document."""
        means = {s.name: x for s in self.schemes if (x := s.mean(LOSS, self.target)) is not None}
        best = f"least mean at {self.target:,}: {min(means, key=means.__getitem__)}"
        title = f"Loss of the same tokens after longer contexts; {best if means else 'no losses'}"
        drawn, (axes,) = plotting.canvas(6.8, 4.8, title=title)
        draw_losses(axes, self.schemes, LOSS, self.config.lengths, self.length, self.target)
        alt = f"Loss of the same last tokens of each document, against the context. {title}"
        return plotting.Drawing("loss", drawn, alt=alt)

    @plotting.styled
    def map(self) -> plotting.Drawing:
        """The fraction of answers that are right, method × task, at the lengths that matter."""
        within = [n for n in self.config.lengths if n <= self.length]
        lengths = dict.fromkeys([*within[-1:], self.target])
        title = f"Answers right; {self.length:,} tokens is the trained length"
        size = 2.4 + 0.6 * len(self.tasks), (1.2 + 0.3 * len(self.schemes)) * len(lengths) + 1.2
        drawn, panels = plotting.canvas(*size, len(lengths), title=title)
        for axes, length in zip(panels, lengths, strict=True):
            cells = [[s.mean(task, length) for task in self.tasks] for s in self.schemes]
            plotting.numbers(axes, np.array(cells, float))
            names = plotting.labels([s.name for s in self.schemes], 28)
            axes.set_yticks(range(len(names)), names)
            axes.set_xticks([])
            axes.set_title(f"context of {length:,} tokens")
        panels[-1].set_xticks(range(len(self.tasks)), self.tasks, rotation=40, ha="right")
        plotting.colour_bar(drawn, panels, "fraction of answers right")
        return plotting.Drawing("tasks", drawn, alt=f"Answers right by method and task. {title}")
