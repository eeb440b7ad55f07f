"""The figures of docs/results/ say what the tables beside them say; answers quote the page."""

import math
import re
from pathlib import Path

import pytest

from experiments.reporting import results, statistics, verdicts
from experiments.reporting.comparison import figures, series_figure
from experiments.reporting.results import Scheme
from experiments.running.configs.compare import CompareConfig
from experiments.running.files import table
from pe_jax.training.config import PROTOCOLS
from tools import results_docs

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = DOCS / "figures"
TITLES = {
    "novels": "t5, kerple and alibi end 0.69 to 0.87 nats below rope at 1,024 tokens;"
    " no lead of rope over nope and sinusoidal is shown there",
    "released": "4 of 12 schemes end 0.30 to 0.41 nats below rope,"
    " 4 of 12 schemes end 0.68 to 1.16 above it at 1,024 tokens",
    "hybrids": "All 4 schemes end 0.20 to 1.04 nats below rope at 1,024 tokens",
    "larger": "4 of 5 schemes end 0.36 to 0.46 nats below rope, nope ends 0.51 above it"
    " at 4,096 tokens",
    "extrapolation": "All 5 schemes end 0.31 to 0.88 nats below rope at 1,024 tokens",
    "field_2026": "7 of 10 schemes end 0.19 to 0.90 nats below rope at 512 tokens",
    "compare": "6 of 9 schemes end 0.60 to 0.95 nats below rope at 512 tokens;"
    " no lead of rope over nope and sinusoidal is shown there",
    "sizes": "t5 below, nope above at 128 tokens; t5 and alibi below, nope on both sides at 1,024"
    " tokens (Holm)",
    "steps": "nope and sinusoidal above at 128 tokens; 6 of 7 schemes below at 1,024 tokens (Holm)",
}
COMPARED = {"released": 24, "field_2026": 20, "compare": 17, "hybrids": 8}  # verdicts


@pytest.mark.parametrize("stem", results_docs.TRAINED)
def test_the_figure_of_differences_has_the_numbers_of_the_verdicts(stem):
    trained = results_docs.TRAINED[stem]
    found = results_docs.losses(FIGURES / f"{stem}.csv", trained)
    drawn = figures.differences_by_length(found, "non-overlapping", closely=True)
    means = {(name, length): mean for name, _, length, mean, *_ in drawn.rows}
    decided = table.read_csv(FIGURES / f"{stem}_verdicts.csv")
    compared = [row for row in decided if row["difference"]]
    assert len(compared) == COMPARED.get(stem, 10)
    for row in compared:
        name = results_docs.PATTERNS.get(row["encoding"], row["encoding"])
        assert means[name, int(row["length"])] == pytest.approx(float(row["difference"]))
    assert drawn.alt.endswith(TITLES[stem])
    near, _ = drawn.figure.axes
    intervals = [sorted(y) for line in near.lines if len(y := line.get_ydata()) == 2 and any(y)]
    trained_rows = [row for row in compared if int(row["length"]) == trained]
    wanted = [[float(row["low"]), float(row["high"])] for row in trained_rows]
    assert len(wanted) - 4 <= len(intervals) <= len(wanted)  # the farthest are numbers at the edge
    for interval in intervals:
        assert any(interval == pytest.approx(x, abs=1e-6) for x in wanted)
        assert near.get_ylim()[0] < interval[0] and interval[1] < near.get_ylim()[1]
    assert len(near.texts) == len(wanted) - len(intervals)


VERDICTS = sorted(path.stem.removesuffix("_verdicts") for path in FIGURES.glob("*_verdicts.csv"))


@pytest.mark.parametrize("stem", VERDICTS)
def test_every_verdict_follows_from_the_losses_of_every_seed(stem):
    schemes = results.of_table(table.read(FIGURES / f"{stem}.csv"))
    effect = CompareConfig().smallest_effect
    decided = table.read_csv(FIGURES / f"{stem}_verdicts.csv")
    for question in {row["question"]: row for row in decided}.values():
        about = (question[field] for field in ("reference", "protocol", "length"))
        reference, protocol, length = about
        again = verdicts.decide(schemes, reference, protocol, int(length), effect)
        again = {verdict.name: verdict for verdict in again}
        for row in decided:
            if row["question"] != question["question"]:
                continue
            verdict = again[row["encoding"]]
            t, d = verdict.tested, verdict.tested.estimate
            numbers = {
                "difference": d.mean,
                "low": t.low,
                "high": t.high,
                "p": d.p,
                "p_holm": t.holm,
            }
            for field, value in numbers.items():
                wanted = float(row[field]) if row[field] else math.nan
                assert value == pytest.approx(wanted, rel=1e-3, abs=2e-6, nan_ok=True), (row, field)
            assert row["verdict"].replace("exploratory; ", "").replace(" (exploratory)", "") == (
                verdict.words
            )


@pytest.mark.parametrize(("stem", "parts"), [("sizes", "size_*M"), ("steps", "steps_*000")])
def test_the_figure_of_a_series_has_the_differences_of_every_verdict(stem, parts):
    drawn: dict[tuple[int, int], dict] = {}
    for p in results_docs.series(FIGURES / f"{stem}.csv"):
        found = drawn.setdefault((p.parameters, p.steps), {})
        found[p.scheme.name, p.length] = p.difference.mean
    reference = Scheme("rope", "rope", 0, {})
    title = series_figure.differences(results_docs.series(FIGURES / f"{stem}.csv"), reference).alt
    assert title.endswith(TITLES[stem])
    files = sorted(FIGURES.glob(f"{parts}_verdicts.csv"))
    assert len(files) == len(drawn) > 1
    for path, found in zip(files, (drawn[n] for n in sorted(drawn)), strict=True):
        rows = [row for row in table.read_csv(path) if row["difference"]]
        wanted = {(r["encoding"], int(r["length"])): float(r["difference"]) for r in rows}
        assert found == pytest.approx(wanted, abs=1e-6)


def test_the_slopes_of_the_page_are_those_of_the_figure():
    found = series_figure.slopes(results_docs.series(FIGURES / "sizes.csv"))
    page = (DOCS / "results" / "size.md").read_text("utf-8")
    shown = re.search(r"## Per doubling.*?\n\n(.*?)\n\n", page, re.DOTALL)
    assert shown is not None
    rows = re.findall(r"^\| (\w+) \| (.*\]) \|$", shown[1], re.MULTILINE)
    assert {name for name, _ in rows} == {name for _, name in found}
    for name, cells in rows:
        slopes = [found[length, name] for length in (128, 1024)]
        ends = [statistics.number(x, 3, True) for d in slopes for x in (d.mean, d.low, d.high)]
        assert re.findall(r"[+\N{MINUS SIGN}]\d\.\d{3}", cells) == ends


def test_no_encoding_gains_from_text_beyond_its_trained_length():
    """As docs/results.md says of all comparisons: means over seeds under the sliding window."""
    gains = []
    for path in FIGURES.glob("*.csv"):
        header = path.read_text("utf-8").partition("\n")[0].strip().split(",")
        if "windows" not in header:
            continue  # not one of a comparison's losses
        if path.stem.startswith("trained_length"):
            continue  # their stride is the trained length: at that length nothing slides
        sliding: dict[str, dict[int, list[float]]] = {}
        for row in table.read(path):
            if row.value is not None and row.test == PROTOCOLS[1]:
                at = sliding.setdefault(row.scheme, {})
                at.setdefault(row.length, []).append(row.value)
        for by_length in sliding.values():
            trained, *longer = (sum(x) / len(x) for _, x in sorted(by_length.items()))
            gains.append(trained - min(longer, default=trained))
    assert len(gains) > 100 and 0.0014 < max(gains) < 0.0015
    assert "falls by more than 0.0015" in (DOCS / "results.md").read_text("utf-8")


def test_the_answers_quote_the_results():
    """Every number with a decimal point in docs/which.md is in one of the pages that it cites."""
    answers = (DOCS / "which.md").read_text("utf-8")
    pages = [DOCS / "performance.md", *DOCS.glob("results/*.md")]
    cited = [page.read_text("utf-8") for page in pages]
    quoted = re.findall(r"(?<![\w.])\d+\.\d+(?!\w)", re.sub(r"`[^`]*`", "", answers))
    assert len(quoted) > 50
    assert {*quoted} <= {*re.findall(r"\d+\.\d+", "".join(cited))}
