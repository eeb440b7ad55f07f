"""The report of extended contexts: loss against length, passkeys by depth and length, a table."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import rich.table
from matplotlib.axes import Axes

from experiments.reporting import plotting, results, statistics
from experiments.reporting.accuracy_differences import judged
from experiments.reporting.results import Run, Scheme, told_apart
from experiments.reporting.verdicts import Verdict, decide
from experiments.running.configs.extend import ExtendConfig
from experiments.running.files.run_names import short_names
from experiments.running.files.table import Row, Test
from pe_jax.training.config import PROTOCOLS

WORDS = {"plain": "no fine-tune", "tuned": "after {} steps"}  # variant of the table → its title
FOUND = ("passkeys: exact", "passkeys: tokens")  # tests of the table


class Judged(NamedTuple):
    """An entry's difference to the reference with its interval, and the verdict, as text."""

    name: str
    difference: str
    words: str


def judged_losses(verdicts: Iterable[Verdict]) -> list[Judged]:
    """The verdicts on losses as text."""
    rows = []
    for v in verdicts:
        bounds = "" if np.isnan(v.tested.low) else f" {v.tested.interval(3)}"
        mean = statistics.number(v.difference.mean, 3, True) if v.difference else ""
        rows.append(Judged(v.name, mean + bounds, v.words))
    return rows


def judged_accuracies(reference: str, differences: Iterable[dict]) -> list[Judged]:
    """The differences of accuracies in points, as `judged` gives them, as text."""
    rows = [Judged(reference, "", "the reference")]
    for row in differences:
        bounds = "" if row.get("low") is None else f" {row['interval']}"
        mean = statistics.number(row["points"], 1, True) if "points" in row else ""
        rows.append(Judged(row["of"], mean + bounds, row["verdict"]))
    return rows


def table_by_length(
    title: str,
    schemes: Iterable[Scheme],
    lengths: Iterable[int],
    cell: Callable[[Scheme, int], str],
) -> rich.table.Table:
    """A row per scheme, a column per length."""
    table = rich.table.Table("encoding", title=title)
    for length in lengths:
        table.add_column(str(length), justify="right")
    for scheme in schemes:
        table.add_row(scheme.name, *(cell(scheme, length) for length in lengths))
    return table


def table_of_verdicts(title: str, unit: str, rows: Iterable[Judged]) -> rich.table.Table:
    """The differences to the reference, paired by the unit, and their verdicts."""
    table = rich.table.Table("encoding", "difference", "verdict", title=title)
    table.caption = f"Paired by {unit}, 95 % simultaneous (Holm) intervals over all methods."
    for row in rows:
        table.add_row(*row)
    return table


def draw_losses(
    axes: Axes,
    schemes: Iterable[Scheme],
    test: str,
    lengths: Sequence[int],
    trained: int,
    target: int,
) -> None:
    """Loss against length, with the trained length and the target; one dot per run."""
    ends = []
    for scheme in schemes:
        ends += plotting.seeds(axes, scheme, {n: scheme.cell(test, n) for n in lengths})
    axes.set(xlabel="context (tokens)", ylabel="loss (nats per token)")
    plotting.log2_axis(axes, lengths)
    plotting.mark_length(axes, trained, before=trained > lengths[0])
    plotting.mark_length(axes, target, "target")
    plotting.name_lines(axes, ends)


def schemes(entries: Iterable[dict], part: str) -> tuple[Scheme, ...]:
    """The schemes of `entries` of results.json, each with a run for each seed."""
    listed = []
    for index, entry in enumerate(entries):
        runs = {}
        for seed, result in ((int(seed), parts[part]) for seed, parts in entry["seeds"].items()):
            numbers = results.losses(result)
            for length, keys in (result.get("passkeys") or {}).items():
                for test in FOUND:
                    _, _, field = test.partition(": ")
                    found = np.array(keys[field]) if keys else "not defined"
                    numbers[test, int(length)] = found
            runs[seed] = Run(seed, result["status"], result["reason"], numbers)
        listed.append(Scheme(entry["name"], entry["encoding"], index, runs))
    return told_apart(listed)


@dataclasses.dataclass(frozen=True)
class Page:
    """The results: trained and target length; by part, methods and then other encodings."""

    config: ExtendConfig
    length: int
    target: int
    schemes: dict[str, tuple[Scheme, ...]]

    @property
    def parts(self) -> dict[str, str]:
        """Part of the results → its title."""
        return {part: WORDS[part].format(self.config.steps) for part in self.schemes}

    def rows(self) -> Iterator[Row]:
        """The table of all losses and passkeys."""
        lengths, depths = self.config.eval.lengths, np.linspace(0, 1, self.config.depths).tolist()
        for part, schemes in self.schemes.items():
            losses = [(protocol, n) for protocol in PROTOCOLS for n in lengths]
            yield from results.rows(schemes, losses, part)
            passkeys = [(test, n) for test in FOUND for n in lengths]
            yield from results.rows(schemes, passkeys, part, depths)

    def passkeys(self, scheme: Scheme, length: int) -> np.ndarray | None:
        """The fraction that is right, [seeds, depths], or None unless all seeds have it."""
        found, problem = scheme.measured(FOUND[0], length)
        return None if problem else np.array([found[seed] for seed in sorted(found)])

    def tables(self) -> list[rich.table.Table]:
        """Loss by length, passkeys by length and verdicts, without and after the fine-tune."""
        first, *_ = self.schemes.values()
        count, others = len(first[0].runs), first[len(self.config.encodings) :]
        seeds = f"Mean ± standard deviation over {count} seeds." if count > 1 else "One seed."

        def loss(scheme: Scheme, length: int) -> str:
            cell = scheme.cell(PROTOCOLS[1], length)
            return cell.problem or statistics.shown([*cell.values.values()], 3)

        def keys(scheme: Scheme, length: int) -> str:
            rates = self.passkeys(scheme, length)
            return "–" if rates is None else statistics.shown(rates.mean(1).tolist(), 2)

        tables, lengths = [], self.config.eval.lengths
        for part, words in self.parts.items():
            units = {
                f"Loss, nats per token, {PROTOCOLS[1]}": loss,
                "Passkeys, fraction right over all depths": keys,
            }
            for unit, cell in units.items():
                caption = f"Trained at {self.length}, extended to {self.target}. {seeds}"
                if others:
                    caption += f" Trained with that encoding: {'; '.join(s.name for s in others)}."
                table = table_by_length(f"{unit}: {words}", self.schemes[part], lengths, cell)
                table.caption = caption
                tables.append(table)
            minus = f"{PROTOCOLS[1]}, minus that of {self.reference}: {words}"
            title = f"Loss at {self.target}, {minus}"
            if self.config.primary == "passkeys":
                title = f"Passkeys at {self.target}, points, minus {self.reference}: {words}"
            tables.append(table_of_verdicts(title, "seed", self.judged(part)))
        return tables

    def judged(self, part: str) -> list[Judged]:
        """Every entry against the reference at the target, on the primary metric."""
        if self.config.primary == "passkeys":
            return judged_accuracies(self.reference, self.passkey_differences(part))
        return judged_losses(self.verdicts(part))

    def passkey_differences(self, part: str) -> list[dict]:
        """Passkeys found at the target minus the reference's, in points: judged, for results.json.

        Entries count once if all their losses and passkeys are bitwise those of another.
        """
        (reference,) = (s for s in self.schemes[part] if s.name == self.reference)
        pairs = [(s, reference) for s in self.schemes[part] if s is not reference]
        every = {test for run in reference.runs.values() for test in run.numbers}
        target: dict[str, list[Test]] = {str(self.target): [(FOUND[0], self.target)]}
        return judged(pairs, target, "passkeys", sorted(every))

    def verdicts(self, part: str) -> list[Verdict]:
        """Every method against the reference, at the target length under a sliding window."""
        return decide(self.schemes[part], self.reference, PROTOCOLS[1], self.target)

    @property
    def reference(self) -> str:
        """The short name of the method that the others are compared with."""
        return short_names(["rope", *self.config.encodings])[self.config.reference]

    def drawings(self) -> list[plotting.Drawing]:
        """A figure of losses for each protocol, and one of passkeys."""
        return [*(self.losses(protocol) for protocol in PROTOCOLS), self.map()]

    def _best(
        self, value: Callable[[Scheme], float | None], choose: Callable, words: str = ""
    ) -> str:
        """The method with the least or greatest value, in each part; "" if there are none."""
        listed = []
        for part, name in self.parts.items():
            values = {s.name: x for s in self.schemes[part] if (x := value(s)) is not None}
            if values:
                best = choose(values, key=values.__getitem__)
                listed.append(f"{best}{words.format(values[best])} ({name})")
        return ", ".join(listed)

    @plotting.styled
    def losses(self, protocol: str) -> plotting.Drawing:
        """Loss against length, a panel without and one after the fine-tune; one dot per seed."""
        best = self._best(lambda s: s.mean(protocol, self.target), min)
        best = f"least mean at {self.target:,}: {best}" if best else "no losses"
        title = f"{protocol.capitalize()}: {best}"
        count = len(self.parts)
        drawn, panels = plotting.canvas(6.4, 3.9 * count + 0.4, count, title=title)
        for axes, (part, words) in zip(panels, self.parts.items(), strict=True):
            axes.set_title(words)
            marks = self.length, self.target
            draw_losses(axes, self.schemes[part], protocol, self.config.eval.lengths, *marks)
        alt = f"Loss of each method against the length of the context, {protocol}. {title}"
        return plotting.Drawing(f"loss-{protocol}", drawn, alt=alt)

    @plotting.styled
    def map(self) -> plotting.Drawing:
        """The fraction of passkeys that is right, by depth and length: a map for each method."""
        lengths, depths = self.config.eval.lengths, np.linspace(0, 1, self.config.depths)
        count, parts = len(next(iter(self.schemes.values()))), self.parts

        def found_at_target(scheme: Scheme) -> float | None:
            rates = self.passkeys(scheme, self.target)
            return None if rates is None else float(rates.mean())

        best = self._best(found_at_target, max, " with {:.2f}")
        best = f"Most keys in the mean at {self.target:,}: {best}" if best else "Passkeys found"
        title = f"{best}; {self.length:,} is the trained length, {self.target:,} the target"
        size = 1.9 + 0.5 * len(lengths) * len(parts), 0.3 + (0.5 + 0.17 * len(depths)) * count
        drawn, panels = plotting.canvas(*size, count, len(parts), title=title)
        grid = np.reshape(np.array(panels, object), (count, -1))
        for column, (part, words) in enumerate(parts.items()):
            schemes = self.schemes[part]
            names = plotting.labels([scheme.name for scheme in schemes])
            for axes, scheme, name in zip(grid[:, column], schemes, names, strict=True):
                rates = {n: self.passkeys(scheme, n) for n in lengths}
                none = np.full(len(depths), np.nan)
                values = [none if r is None else r.mean(0) for r in rates.values()]
                plotting.numbers(axes, np.transpose(values))
                axes.set_title(f"{name}, {words}", fontsize=8.5)
                axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=7.5)
                axes.set_yticks([0, len(depths) - 1], ["start", "end"], fontsize=7.5)
        plotting.colour_bar(drawn, panels, "fraction of keys found")
        alt = f"Fraction of passkeys found, by depth of the key and length of text. {title}"
        return plotting.Drawing("passkeys", drawn, alt=alt)
