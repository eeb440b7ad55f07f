"""Tables of a comparison's page that are there only sometimes: learning rates, speed by length."""

import math
from typing import Any

from experiments.reporting import learning_rates, speed_ratios
from experiments.reporting.html_page import Section
from experiments.reporting.number_formats import number
from experiments.reporting.results import Results, Scheme

MULTIPLES = (
    " × is the multiple of the rate at which an encoding's own parameters learn. The loss at a rate"
    " is the least over multiples, that at a multiple the least over rates."
)


def tables(results: Results) -> list[Section]:
    """Learning rates, if any were tried, and speed by length."""
    rates = learning_rates.rates(results)
    sections = [_rate_section(results, rates)] if any(row.losses for row in rates) else []
    return sections + _speed_sections(results)


def _rate_section(results: Results, rows: list[learning_rates.Rates]) -> Section:
    pairs = {pair for row in rows for pair in row.losses}
    rates, multiples = (sorted({pair[k] for pair in pairs}) for k in (0, 1))
    columns = [(0, rate) for rate in rates] * (len(rates) > 1 or len(multiples) == 1)
    columns += [(1, multiple) for multiple in multiples] * (len(multiples) > 1)
    steps, length = results.manifest["rate_steps"], results.manifest["train_length"]
    return Section(
        title="Learning rates",
        note=f"Loss after {steps:,} steps on {learning_rates.checked_on(results)} at length"
        f" {length}, one seed, in nats per token; each scheme was then trained with its best, from"
        " the start." + MULTIPLES * (len(multiples) > 1),
        head=("encoding", *(f"{'× ' * k}{value:g}" for k, value in columns), "used", "remark"),
        rows=[
            (
                row.name,
                *(_least(row, *column) for column in columns),
                learning_rates.pair_words(row.used),
                row.remark,
            )
            for row in rows
        ],
        csv="rates.csv",
        words=("remark",),
    )


def _least(row: learning_rates.Rates, which: int, value: float) -> str:
    """The least loss at a learning rate (`which` 0) or at a multiple (1), or its problem."""
    if which and len({multiple for _, multiple in row.losses}) < 2:
        return "—"  # no parameters that could learn at another rate
    pairs = [pair for pair in row.losses if pair[which] == value]
    if not pairs:
        return "—"
    best = min(pairs, key=lambda pair: row.losses[pair])
    loss = row.losses[best]
    return number(loss) if loss < math.inf else row.statuses[best]


def _speed_sections(results: Results) -> list[Section]:
    """Time per token or memory, and ratios, by length: one section per measure."""
    lengths = (results.speed or {}).get("lengths", {})
    timed = {m for timings in lengths.values() for v in timings["encodings"].values() for m in v}
    return [_speed_section(results, m, lengths) for m in speed_ratios.BY_LENGTH if m in timed]


def _speed_section(results: Results, measure: str, lengths: dict[str, Any]) -> Section:
    """One measure; `lengths` as speed.json has them: length → its batch and timings."""
    base, ratios = results.manifest["baseline"], speed_ratios.speed_by_length(results)
    by_length = ratios.get(measure, {})
    device = results.speed["device"] if results.speed else ""

    def cell(scheme: Scheme, length: str) -> str:
        timings = lengths[length]
        values = timings["encodings"].get(scheme.name, {"problem": "not measured"})
        ratio = by_length.get(int(length), {}).get(scheme.name)
        return speed_ratios.speed_cell(measure, values, ratio, int(length), timings["batch"])

    unit = "MiB" if measure.endswith("bytes") else "microseconds per token"
    batches = ", ".join(f"{n} × {timings['batch']}" for n, timings in lengths.items())
    return Section(
        title=f"{speed_ratios.BY_LENGTH[measure].partition(',')[0].capitalize()}, by length:"
        f" {unit} (ratio to {base}); less is better",
        note=f"Ours, on {device}: medians, and the ratio of time or"
        f" memory to {base}, interleaved in one process. Length × batch: {batches}.",
        head=("encoding", *lengths),
        rows=[(s.name, *(cell(s, length) for length in lengths)) for s in results.schemes],
        csv="speed_by_length.csv",
    )


def what_differs(results: Results) -> str:
    """How this comparison differs from published ones, whose numbers are listed with it."""
    m = results.manifest
    sizes = sorted({n for s in results.schemes if (n := s.fact("parameters")) is not None})
    size = f"{sizes[-1] / 1e6:,.1f}M parameters at most, " if sizes else ""
    tokens = m["steps"] * m["batch"] * m["train_length"] / 1e6
    kind = m["config"].get("tokenizer", "bytes")
    return (
        f"Here: {m['corpus']['name']}, tokens are {kind}, {size}{tokens:,.1f}M tokens of training"
        " per run. Levels do not compare, only which schemes hold as the text grows longer."
    )
