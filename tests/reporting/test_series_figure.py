"""Differences against the size of the model or the steps, from several comparisons."""

import json

import numpy as np
import pytest

from experiments.reporting import results
from experiments.reporting.comparison import series_figure
from experiments.reporting.statistics import estimate
from experiments.reporting.verdicts import Question, verdicts
from pe_jax.validation import ConfigError
from tests.command_lines import start, status

pytestmark = pytest.mark.xdist_group("report")
NAMES = ["nope", "rope", "alibi"]


def grown(folder, times, steps=400):
    """The comparison as if its models were larger: that many times the parameters."""
    for path in folder.glob("runs/*/*/evaluation.json"):
        found = json.loads(path.read_text())
        path.write_text(json.dumps(found | {"parameters": times * found["parameters"]}))
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": steps}))
    return folder


@pytest.fixture(scope="module")
def sizes(fake):
    """Three sizes; ALiBi's loss at 512 is above RoPE's in the first and below in the others."""
    config = {"model": {"width": 32}, "length": 64, "batch": 32}
    effects = {"nope": 0.4, "rope": 0.1, "alibi": 0.3}
    first = fake(NAMES, effects=effects, config=config)
    later = [fake(NAMES, config={**config, "model": {"width": w}}) for w in (64, 128)]
    return [grown(later[1], 9, steps=800), first, grown(later[0], 3)]


def test_a_point_is_the_difference_of_that_sizes_report(sizes):
    found = series_figure.points(series_figure.read(sizes))
    reports = {series_figure.parameters(x): x for x in map(results.read, sizes)}
    assert [*dict.fromkeys(p.parameters for p in found)] == sorted(reports)
    assert len(found) == 3 * 2 * 2
    for p in found:
        decided = verdicts(reports[p.parameters], Question("", "non-overlapping", p.length))
        (theirs,) = (v.difference for v in decided if v.name == p.scheme.name)
        assert p.difference == theirs
        assert p.steps == reports[p.parameters].manifest.steps


def test_the_figure_has_a_row_for_every_difference_and_its_own_title(sizes):
    drawing, _ = series_figure.draw(sizes)
    assert len(drawing.rows) == 12 and drawing.header == series_figure.HEADER
    assert "at 512 tokens" in drawing.alt


def test_comparisons_of_one_size_are_drawn_against_their_steps(fake):
    config = {"length": 64, "batch": 32}
    long, short = (grown(fake(NAMES, config=config), 1, steps) for steps in (1600, 400))
    drawing, slopes = series_figure.draw([long, short])
    assert not slopes.row_count  # two comparisons show no trend
    assert drawing.stem == "differences-by-steps"
    assert "at every number of steps" in drawing.alt
    steps, mean = (series_figure.HEADER.index(x) for x in ("steps", "mean"))
    assert [row[steps] for row in drawing.rows] == [400] * 4 + [1600] * 4
    axes = drawing.figure.axes[0]
    alibi = [row for row in drawing.rows if row[0] == "alibi" and row[3] == 64]
    lines = [[*zip(*line.get_data(), strict=True)] for line in axes.lines]
    assert [(row[steps], row[mean]) for row in alibi] in lines
    with pytest.raises(ConfigError, match=r"400 steps, as in .* with one size other steps"):
        series_figure.read([short, short])


def test_a_slope_is_that_of_each_seed_over_all_sizes(sizes):
    found = series_figure.points(series_figure.read(sizes))
    slopes = series_figure.slopes(found)
    assert [*slopes] == [(length, name) for length in (64, 512) for name in ("nope", "alibi")]
    for (length, name), slope in slopes.items():
        line = [p for p in found if (p.length, p.scheme.name) == (length, name)]
        x = np.log2([p.parameters for p in line])
        x -= x.mean()
        seeds = zip(*(p.difference.values for p in line), strict=True)
        each = [x @ np.array(y) / (x @ x) for y in seeds]
        np.testing.assert_allclose(slope.values, each, rtol=1e-9, atol=1e-12)
        assert slope == estimate(slope.values)
    fewer = [
        p._replace(difference=estimate(p.difference.values[1:]), seeds=p.seeds[1:]) for p in found
    ]
    assert not series_figure.slopes([*found[:-2], *fewer[-2:]]).keys() & {(512, "alibi")}
    assert slopes.keys() >= series_figure.slopes(found[4:]).keys() == set()  # two sizes


def test_variants_of_one_name_are_lines_of_their_own(sizes, fake):
    config = {"model": {"width": 256}, "length": 64, "batch": 32}
    other = grown(fake(NAMES, config=config), 27)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["encodings"][2]["spec"] = "alibi(first=0.5)"
    (other / "manifest.json").write_text(json.dumps(manifest))
    read = series_figure.read([*sizes, other])
    names = {scheme.name for part in read for scheme in part.schemes}
    assert names == {"nope", "rope", "alibi", "alibi first 0.5"}
    slopes = series_figure.slopes(series_figure.points(read))
    assert {name for _, name in slopes} == {"nope"}  # of ALiBi each lacks a size
    manifest["encodings"][1]["spec"] = "rope(base=5e5)"
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"its reference is rope\(base=5e5\), .* is rope"):
        series_figure.read([*sizes, other])


def test_a_line_has_a_gap_where_a_comparison_lacks_its_scheme(sizes):
    found = series_figure.points(series_figure.read(sizes))
    values = sorted({p.parameters for p in found})
    without = [p for p in found if (p.parameters, p.scheme.name) != (values[1], "alibi")]
    drawing = series_figure.differences(without, series_figure.read(sizes)[0].reference)
    lines = [[*line.get_xdata()] for line in drawing.figure.axes[0].lines]
    assert values[:1] in lines and values[2:] in lines and [values[0], values[2]] not in lines
    assert {name for _, name in series_figure.slopes(without)} == {"nope"}


def test_the_program_writes_the_figure_and_its_table(sizes, tmp_path, capsys):
    flags = f"--workdir={tmp_path}", f"--series={','.join(map(str, sizes))}"
    assert status(lambda: start("report", print), *flags) is None
    *table, path = capsys.readouterr().out.strip().splitlines()
    assert path == str(tmp_path / "differences-by-parameters.png")
    assert table[0].strip().startswith("Difference to rope per doubling of the parameters")
    assert (tmp_path / "differences-by-parameters.csv").read_text().count("\n") == 13


def test_comparisons_that_differ_in_more_than_size_are_refused(sizes, fake):
    other = fake(NAMES, config={"length": 64, "batch": 16})
    with pytest.raises(
        ConfigError, match=r"batch=16, and .* has 32: only sizes, or steps, may differ"
    ):
        series_figure.read([grown(other, 27), sizes[0]])
    for field, value in (("positions", "randomized"), ("model", {"norm": "layer"})):
        other = fake(NAMES, config={"length": 64, "batch": 32, field: value})
        with pytest.raises(ConfigError, match=rf"{field}.*, and .* has .*: only sizes, or steps"):
            series_figure.read([grown(other, 27), sizes[0]])
    with pytest.raises(ConfigError, match=r"120,400 parameters, as in .* another size"):
        series_figure.read([sizes[1], sizes[1], sizes[0]])


def test_where_nothing_is_to_compare_it_says_so(fake):
    alone = fake(["rope"], config={"length": 64, "batch": 32})
    with pytest.raises(ConfigError, match="no scheme has losses to compare with its reference"):
        series_figure.draw([alone])
    with pytest.raises(ConfigError, match="holds no manifest"):
        series_figure.draw([alone / "elsewhere"])
