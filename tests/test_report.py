import base64
import csv
import hashlib
import html.parser
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest
import rich.console

import pe_jax
from configs import extrapolation_field
from experiments.reporting import (
    comparison_report,
    findings,
    html_page,
    learning_rates,
    plotting,
    published_results,
    results,
    statistics,
)
from experiments.reporting.loss_curves import curve, still_falling
from pe_jax.encodings import parse

LENGTHS, SEEDS, TRAIN = (64, 128, 256, 512), (0, 1, 2), 64
DIMS = {"width": 32, "heads": 4, "kv_heads": 2, "head_dim": 8}
GROWTH = {"nope": 0.25, "sinusoidal": 0.9, "learned": 0, "t5": 0.02, "rope": 0.3, "alibi": -0.03}
DRAWN = (*GROWTH, "shaw", "transformer_xl", "buckets", "deberta")
HOSTILE = r"<script>$\frac{&[red]"
pytestmark = pytest.mark.xdist_group("report")


def manifest(names, seeds=SEEDS, **fields):
    specs = {"learned": "learned(length=64)", "twin": "rope", HOSTILE: "t5+rope"}
    return {
        "name": "demonstration",
        "train_length": TRAIN,
        "lengths": list(LENGTHS),
        "baseline": "nope",
        "reference": "rope",
        "encodings": [{"name": n, "spec": specs.get(n, n)} for n in names],
        "seeds": list(seeds),
        "config": {"model": {"depth": 2, "encoding": "rope"}, "data": "embedded"},
        "corpus": {"name": "embedded", "digest": "sha256:0123", "describe": "five wheels"},
        "versions": {"jax": "0.10.2"},
        "commit": "0123abc",
        "device": "cpu",
        "command": "python -m experiments.compare --steps=400",
        "steps": 400,
        "batch": 32,
        "learning_rate": 1e-3,
        "note": "A demonstration: one learning rate, a small model.",
        "dims": DIMS,
        **fields,
    }


def evaluation(name, seed, effect):
    """Plausible losses: a level, a rise beyond the training length, noise shared by a seed."""
    shared = np.random.default_rng(seed)  # the same windows for every scheme
    own = np.random.default_rng([seed, len(name), *name.encode()])
    losses = {"non-overlapping": {}, "sliding": {}}
    for protocol, rows in losses.items():
        for n in LENGTHS:
            steps = np.log2(n / TRAIN)
            level = (
                2.4 - 0.05 * steps * (protocol == "sliding") + effect * steps + shared.normal() / 40
            )
            windows = level + shared.normal(0, 0.2, 24) + own.normal(0, 0.004)
            outside = name == "learned" and n > TRAIN
            rows[str(n)] = None if outside else windows.tolist()
    at = np.arange(LENGTHS[-1])
    curve = 2.3 + 1.6 / np.sqrt(at + 1) + effect * np.log2(np.maximum(at / TRAIN, 1))
    return {
        "status": "ok",
        "reason": "",
        "parameters": 120_000 + 100 * len(name),
        "encoding_parameters": 100 * len(name),
        "flops_per_token": 2.5e5,
        "train_loss": 2.2 + 0.01 * seed,
        "seconds": 30.0,
        "losses": losses,
        "by_position": {
            "length": LENGTHS[-1],
            "loss": None if name == "learned" else (curve + own.normal(0, 0.02, at.size)).tolist(),
        },
    }


def write_run(folder, name, seed, effect):
    folder.mkdir(parents=True)
    found = evaluation(name, seed, effect)
    (folder / "evaluation.json").write_text(json.dumps(found), encoding="utf-8")
    steps = range(0, 400, 10)
    lines = [
        json.dumps({"step": s, "loss": 2.2 + 2 * np.exp(-s / 60), "tokens_per_second": 9e4})
        for s in steps
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_parameters(folder, spec):
    enc, dims = parse(spec)[0], pe_jax.Dims(**DIMS)
    params = enc.init(jax.random.key(1), dims)
    leaves = {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(params))}
    np.savez(folder / "encoding.npz", **leaves)


def write_speed(folder, names):
    rng, found = np.random.default_rng(0), {}
    for i, name in enumerate(names):
        times = (10 + i) * (1 + 0.05 * rng.random(7))
        found[name] = {
            "train_ms": times.tolist(),
            "eval_ms": (times / 3).tolist(),
            "train_temp_bytes": 2**22 + i * 2**18,
            "compile_seconds": 1.5,
        }
    speed = {"device": "cpu", "length": TRAIN, "batch": 32, "encodings": found}
    (folder / "speed.json").write_text(json.dumps(speed), encoding="utf-8")


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """Writes what a comparison would have written, and returns the directory."""

    def write(names, seeds=SEEDS, effects=None, speed=True, **fields):
        folder = tmp_path_factory.mktemp("comparison")
        content = manifest(names, seeds, **fields)
        for entry in content["encodings"]:
            name = entry["name"]
            effect = (effects or GROWTH).get(name, 0.1)
            for seed in seeds:
                write_run(folder / "runs" / name / f"seed{seed}", name, seed, effect)
            write_parameters(folder / "runs" / name / "seed0", entry["spec"])
        if speed:
            write_speed(folder, names)
        (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def whole(fake):
    """Ten schemes, a sum under a hostile name, a missing seed, a diverged run, a torn line."""
    folder = fake([*DRAWN, HOSTILE], name=HOSTILE, note="</style><b>")
    (folder / "runs" / "shaw" / "seed2" / "evaluation.json").unlink()
    path = folder / "runs" / "deberta" / "seed1" / "evaluation.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "status": "diverged", "reason": "loss is NaN at step 7"}))
    with (folder / "runs" / "rope" / "seed0" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 390, "loss": 9.25}\n{"step": 400, "lo')
    comparison_report.build(folder)
    return folder


class Page(html.parser.HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.ids, self.scripts, self.code = [], [], [], [], False
        self.feed(text)
        self.text = re.sub(r"\s+", " ", " ".join(self.text))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.code = tag == "script"
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        self.code = False

    def handle_data(self, data):
        (self.scripts if self.code else self.text).append(data)


@pytest.fixture(scope="session")
def page(whole):
    return Page((whole / "report.html").read_text(encoding="utf-8"))


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def verdicts(folder):
    return {row.name: row.words for row in findings.verdicts(results.read(folder))}


def test_identical_schemes_under_other_names_have_no_winner(fake):
    folder = fake(["rope", "twin", "alibi"], effects={})
    for seed in SEEDS:
        source = folder / "runs" / "rope" / f"seed{seed}" / "evaluation.json"
        for name in ("twin", "alibi"):
            target = folder / "runs" / name / f"seed{seed}" / "evaluation.json"
            target.write_bytes(source.read_bytes())
    found = verdicts(folder)
    assert found["twin"] == found["alibi"] == "no practical difference (identical numbers)"
    read = results.read(folder)
    found = findings.summary(read)["found"]
    assert found == [
        "No scheme was shown to have a lower or a higher loss than rope.",
        "No practical difference (within ±0.01 nats per token): twin, alibi.",
    ]


def test_a_planted_difference_is_found_and_one_seed_shows_none(fake):
    names, effects = ["rope", "twin", "alibi", "sinusoidal"], {"alibi": -0.1, "sinusoidal": 0.5}
    effects |= {"rope": 0.1, "twin": 0.1}
    found = verdicts(fake(names, effects=effects))
    assert found["alibi"] == "lower loss than rope"
    assert found["sinusoidal"] == "higher loss than rope"
    assert found["twin"] == "inconclusive"
    alone = verdicts(fake(names, seeds=(0,), effects=effects, speed=False))
    assert alone["alibi"] == alone["sinusoidal"] == "inconclusive (one seed)"


def test_both_questions_are_answered_and_the_secondary_is_called_so(fake, no_portraits):
    effects = {"rope": 0.1, "alibi": -0.1, "t5": 0.1}
    secondary = {"protocol": "non-overlapping", "length": TRAIN}
    folder = fake(["nope", "rope", "alibi", "t5"], effects=effects, secondary=secondary)
    read = results.read(folder)
    first, second = read.questions
    assert (first.role, first.length, second.role, second.length) == (
        "primary",
        512,
        "secondary",
        64,
    )
    found = findings.summary(read)
    assert found["asked"][1] == "Secondary: the same at length 64 (non-overlapping evaluation)."
    assert "alibi" in found["found"][0] and found["found"][0].startswith("Lower loss than rope")
    assert found["found"][-1].startswith(
        "Secondary: the trained length, 64, non-overlapping evaluation. No scheme was shown to have"
    )
    assert "Each question is corrected apart." in " ".join(found["sure"])
    text = Page(comparison_report.build(folder).read_text(encoding="utf-8")).text
    for words in ("Primary: length 512, non-overlapping", "Secondary: the trained length, 64, "):
        assert words in text
    rows = {(r["encoding"], r["question"]): r for r in table(folder / "verdicts.csv")}
    assert len(rows) == 8 and rows["alibi", "primary"]["verdict"] == "lower loss than rope"
    assert rows["alibi", "secondary"]["length"] == "64"
    assert abs(float(rows["alibi", "secondary"]["difference"])) < 0.01
    assert (folder / "figures" / "differences-secondary.csv").is_file()
    shown = printed(folder)
    assert "Primary: loss at length 512" in shown and "Secondary: loss at length 64" in shown
    same = {"protocol": "non-overlapping", "length": 512}
    (only,) = results.read(fake(["rope"], speed=False, secondary=same)).questions
    assert only.role == "primary"


def printed(folder):
    """What the terminal shows of the verdicts."""
    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(comparison_report.summary(folder))
    return console.file.getvalue()


def test_what_holm_does_not_show_crosses_zero_wherever_it_is_drawn(fake, no_portraits):
    names = ["rope", "alibi", "t5", "nope", "shaw", "sinusoidal", "learned"]
    folder = fake(names, effects=dict.fromkeys(names, 0.1))
    offset = {0: 0.02, 1: 0.03, 2: 0.045}  # p is 0.05 by itself, and 0.3 in the family of six
    for seed, extra in offset.items():
        source = folder / "runs" / "rope" / f"seed{seed}" / "evaluation.json"
        found = json.loads(source.read_text())
        found["losses"]["non-overlapping"]["512"] = [
            loss + extra for loss in found["losses"]["non-overlapping"]["512"]
        ]
        (folder / "runs" / "alibi" / f"seed{seed}" / "evaluation.json").write_text(
            json.dumps(found)
        )
    comparison_report.build(folder)
    (row,) = [r for r in table(folder / "verdicts.csv") if r["encoding"] == "alibi"]
    (drawn,) = [
        r for r in table(folder / "figures" / "differences.csv") if r["encoding"] == "alibi"
    ]
    assert float(row["p"]) < 0.05 < float(row["p_holm"])
    assert row["verdict"] == "inconclusive (not after Holm's correction)"
    assert float(row["low"]) < 0 < float(row["high"])
    assert (drawn["low"], drawn["high"]) == (row["low"], row["high"])
    (tested,) = [v.tested for v in findings.verdicts(results.read(folder)) if v.name == "alibi"]
    shown = findings.interval(tested)
    assert shown in Page((folder / "report.html").read_text(encoding="utf-8")).text
    assert shown in printed(folder)


def test_a_zero_that_only_holm_excludes_is_where_the_interval_ends():
    estimate = statistics.estimate([0.30, 0.31, 0.29])
    shown = findings.interval(statistics.Tested(estimate, 0.03, 0.0, 0.62))
    assert shown == "(+0.0000, +0.6200]"
    assert findings.interval(statistics.Tested(estimate, 1.0, 0.0, 0.0)) == "[+0.0000, +0.0000]"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seeds": [0, 1, 2, 3]}, "seed 3 added"),
        ({"encodings": ["rope", "alibi", "nope", "t5"]}, "encoding t5 added"),
        ({"encodings": ["rope", "alibi"]}, "encoding nope left out"),
    ],
)
def test_what_comes_after_a_report_is_exploratory_wherever_it_is_told(
    fake, no_portraits, fields, words
):
    names, effects = ["rope", "alibi", "nope", "t5"], {"rope": 0.3, "alibi": -0.03, "nope": 0.3}
    folder = fake(names, seeds=(0, 1, 2, 3), effects=effects, speed=False)
    path = folder / "manifest.json"
    about = json.loads(path.read_text())

    def shown(seeds, encodings):
        chosen = [{"name": name, "spec": name} for name in encodings]
        path.write_text(json.dumps(about | {"seeds": seeds, "encodings": chosen}))
        page = Page(comparison_report.build(folder).read_text(encoding="utf-8"))
        (row,) = [r for r in table(folder / "verdicts.csv") if r["encoding"] == "alibi"]
        claimed = [a for tag, a in page.tags if tag == "tr" and "claimed" in a.get("class", "")]
        return row["verdict"], findings.summary(results.read(folder)), page.text, claimed

    first = {"seeds": [0, 1, 2], "encodings": names[:3]}
    for _ in range(2):  # the same again is no change
        verdict, found, text, claimed = shown(**first)
        assert verdict == "lower loss than rope" and claimed
        assert "xploratory" not in text + printed(folder)
    for _ in range(2):  # and one report more does not make it confirmatory
        verdict, found, text, claimed = shown(**first | fields)
        assert verdict == "lower loss than rope (exploratory)" and not claimed
        assert found["found"][0].startswith("Exploratory: lower loss than rope")
        assert found["sure"][0].startswith(f"Exploratory, not confirmatory: {words} after a report")
        assert f"Exploratory, not confirmatory: {words}" in text
        terminal = printed(folder)
        assert "lower loss than rope (exploratory)" in terminal
        assert f"{words} after a report" in terminal


def test_missing_diverged_and_undefined_are_words_never_numbers(whole, page):
    rows = {row["encoding"]: row for row in table(whole / "verdicts.csv")}
    assert rows["shaw"]["verdict"] == "missing seed 2"
    assert rows["deberta"]["verdict"] == "diverged in seed 1"
    assert rows["learned"]["verdict"] == "not defined"
    assert {rows[n]["difference"] for n in ("shaw", "deberta", "learned")} == {""}
    shown = table(whole / "figures" / "loss-by-length-sliding.csv")
    undecided = [r for r in shown if r["encoding"] in ("shaw", "deberta")]
    assert {r["mean"] for r in undecided} == {""}
    (trained,) = [r for r in shown if r["encoding"] == "learned" and r["length"] == "64"]
    assert trained["mean"]
    for words in ("missing seed 2", "diverged in seed 1", "not defined", "loss is NaN at step 7"):
        assert words in page.text


def test_a_reference_without_all_seeds_decides_nothing(fake):
    folder = fake(["rope", "alibi"], speed=False)
    (folder / "runs" / "rope" / "seed1" / "evaluation.json").unlink()
    found = verdicts(folder)
    assert found["alibi"] == "not decided: the reference rope has missing seed 1"
    assert found["rope"] == "the reference (missing seed 1)"


def test_hostile_names_are_text_and_nothing_is_fetched(page):
    assert HOSTILE in page.text
    assert "</style><b>" in page.text
    names = {tag for tag, _ in page.tags}
    assert not names & {"iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
                assert re.match(r"(#|data:|figures/[\w.-]+$|\w+\.csv$)", value), (tag, value)
            assert "url(http" not in (value or "")
    assert len(page.ids) == len(set(page.ids))


def test_the_one_script_is_ours_and_the_policy_allows_no_other(page):
    (script,) = page.scripts
    assert script == (html_page.TEMPLATES / "report.js").read_text(encoding="utf-8")
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.split("; ") == [
        *("default-src 'none'", "img-src data:", "style-src 'unsafe-inline'"),
        f"script-src 'sha256-{digest}'",
    ]


def test_no_two_schemes_of_the_largest_config_share_a_colour():
    assert len({*plotting.COLOURS}) == len(plotting.COLOURS) >= len(extrapolation_field.ENCODINGS)


def stray(element, inside=False):
    """Elements in a scheme's colour that are not in its group: they would not be isolated."""
    inside = inside or element.get("class") == "scheme"
    own = {*plotting.COLOURS} - {plotting.MUTED}  # which axes have too
    found = (
        [] if inside or not own & {*re.findall(r"#\w{6}", element.get("style", ""))} else [element]
    )
    return found + [bad for child in element for bad in stray(child, inside)]


def test_every_figure_says_which_lines_are_of_which_scheme(whole, page):
    schemes = {str(i) for i in range(len(DRAWN) + 1)}
    text = (whole / "report.html").read_text(encoding="utf-8")
    figures = {
        alt: svg for alt, svg in re.findall(r'aria-label="([^"]*)"><svg(.*?)</svg>', text, re.S)
    }
    for words, missing in [
        ("non-overlapping", set()),
        ("position in the context", {"learned", "shaw", "deberta"}),
        ("training step, time", set()),
        ("the step, one thin line a run", set()),
        ("95 % simultaneous (Holm) intervals", {"learned", "shaw", "deberta", "rope"}),
    ]:
        (svg,) = [svg for alt, svg in figures.items() if words in alt]
        found = set(re.findall(r'<g class="scheme" data-s="(\d+)"', svg))
        assert found >= schemes - {str(DRAWN.index(name)) for name in missing}, words
    for alt, svg in figures.items():
        if not alt.startswith("What "):  # a portrait is of one scheme
            assert not stray(ElementTree.fromstring(f"<svg{svg}</svg>")), alt
    for i in schemes:  # a line of the legend, and a section
        assert f"scheme-{i}" in page.ids
        assert ("a", f"#scheme-{i}") in [(tag, a.get("href")) for tag, a in page.tags]


def test_the_commands_and_what_is_not_default_are_shown(page):
    assert "git checkout 0123abc python -m experiments.compare --steps=400" in page.text
    assert "model.depth 2 —" in page.text  # no such field: there is no default
    assert "data embedded embedded" not in page.text


def test_every_link_leads_somewhere_and_every_image_has_its_data(whole, page):
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside <= {*page.ids}
    assert all((whole / link).is_file() for link in links if not link.startswith("#"))
    images = list((whole / "figures").glob("*.png"))
    assert len(images) >= len(DRAWN) + 6
    assert all(len(table(path.with_suffix(".csv"))) > 0 for path in images)
    assert len(table(whole / "loss_by_length.csv")) == (len(DRAWN) + 1) * 2 * 4 * 3
    ratios = {(r["encoding"], r["measure"]): r for r in table(whole / "speed.csv")}
    assert float(ratios["nope", "train_ms"]["median_ratio"]) == 1


def test_torn_lines_are_counted_and_the_last_of_a_repeated_step_stands(whole, page):
    run = results.read(whole).scheme("rope").runs[0]
    assert (run.torn, run.repeated, run.metrics[-1]["loss"]) == (1, 1, 9.25)
    assert "1 torn line of metrics.jsonl skipped" in page.text


def test_a_name_that_leaves_the_runs_is_refused(fake):
    folder = fake(["rope"], speed=False)
    for name in ("../rope", "/etc", "..", "a/b", ""):
        content = manifest([name])
        (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match="outside runs/"):
            results.read(folder)


def test_the_summary_prints_names_as_they_are(whole):
    text = printed(whole)
    assert HOSTILE in text
    assert "missing seed 2" in text


def test_learning_rates_are_shown_with_what_diverged_and_the_edge_of_the_grid(fake):
    grid = {"rope": (2.5, 2.1, 2.3), "alibi": (None, 2.6, 2.2), "nope": (None, None, None)}
    used = {"rope": 0.01, "alibi": 0.1, "nope": 0.001}
    folder = fake([*grid], speed=False, rates=[0.001, 0.01, 0.1], rate_steps=50)
    for name, losses in grid.items():
        for rate, loss in zip((0.001, 0.01, 0.1), losses, strict=True):
            path = folder / results.rate_folder(name, rate, 1.0) / "evaluation.json"
            path.parent.mkdir(parents=True)
            status = "ok" if loss else "diverged"
            found = {"status": status, "losses": {"non-overlapping": {"64": [loss, loss]}}}
            path.write_text(json.dumps(found), encoding="utf-8")
        for seed in SEEDS:
            path = folder / "runs" / name / f"seed{seed}" / "evaluation.json"
            path.write_text(
                json.dumps({**json.loads(path.read_text()), "learning_rate": used[name]})
            )
    read = results.read(folder)
    rows = {row.name: row for row in learning_rates.rates(read)}
    for name, row in rows.items():
        assert results.best_rate(row.losses) == row.used == (used[name], 1.0)
    assert rows["rope"].remark == ""
    assert rows["alibi"].remark == "the greatest of the grid: a greater one may be better"
    assert rows["nope"].remark == "none of them gave a loss: the least was used"
    words = findings.summary(read)
    assert "best of 0.001, 0.01, 0.1 in 50 steps" in words["asked"][0]
    assert "Of 9 checks of a learning rate: 4 diverged." in words["sure"]
    assert "Best learning rate at the edge of the grid, or none: alibi, nope." in words["sure"]
    comparison_report.build(folder)
    text = Page((folder / "report.html").read_text(encoding="utf-8")).text
    assert "Learning rates" in text and "one seed, in nats per token" in text
    shown = {(r["encoding"], r["learning_rate"]): r for r in table(folder / "rates.csv")}
    assert shown["rope", "0.01"]["used"] == "True" and shown["alibi", "0.001"]["loss"] == ""


def test_rates_of_encodings_are_part_of_the_grid(fake, no_portraits):
    losses = {
        "rope": {(0.01, 1.0): 2.1, (0.03, 1.0): 2.2, (0.1, 1.0): 2.3},
        "t5": {(0.01, 1.0): 2.9, (0.01, 30.0): 2.5, (0.03, 1.0): 2.8, (0.03, 30.0): 2.4},
        "alibi": {(0.01, 1.0): 2.9, (0.03, 1.0): 2.5, (0.1, 1.0): 2.8},
    }
    losses["t5"] |= {(0.1, 1.0): 2.6, (0.1, 30.0): None}
    used = {"rope": (0.01, 1.0), "t5": (0.03, 30.0), "alibi": (0.03, 1.0)}
    encodings = [
        {"name": n, "spec": n, "checks": [list(pair) for pair in pairs]}
        for n, pairs in losses.items()
    ]
    grid = {"rates": [0.01, 0.03, 0.1], "encoding_rates": [1.0, 30.0], "rate_steps": 50}
    folder = fake([*losses], speed=False, **grid, encodings=encodings)
    for name, pairs in losses.items():
        for pair, loss in pairs.items():
            path = folder / results.rate_folder(name, *pair) / "evaluation.json"
            path.parent.mkdir(parents=True)
            found = {"status": "ok" if loss else "diverged"}
            found["losses"] = {"non-overlapping": {"64": [loss]}}
            path.write_text(json.dumps(found))
        for run in (folder / "runs" / name).glob("*/evaluation.json"):
            about = dict(zip(("learning_rate", "encoding_rate"), used[name], strict=True))
            about["encoding_parameters"] = 0 if name != "t5" else 128
            run.write_text(json.dumps(json.loads(run.read_text()) | about))
    assert results.rate_folder("t5", 0.03, 30).as_posix() == "rates/t5/0.03x30.0"
    read = results.read(folder)
    rows = {row.name: row for row in learning_rates.rates(read)}
    for name, row in rows.items():
        assert results.best_rate(row.losses) == row.used == used[name]
    assert (
        rows["t5"].remark == "the greatest multiple for the encoding: a greater one may be better"
    )
    assert rows["rope"].remark == "the least of the grid: a smaller one may be better"
    assert rows["alibi"].remark == ""  # it has one multiple, and no edge there
    shown = {s.name: learning_rates.rate_used(read, s) for s in read.schemes}
    assert shown == {"rope": "0.01", "t5": "0.03 (× 30)", "alibi": "0.03"}
    words = "the best of 0.01, 0.03, 0.1, × 1, 30 for parameters of encodings, in 50 steps"
    assert words in learning_rates.rate_words(read)
    edges = "Best learning rate at the edge of the grid, or none: rope, t5."
    assert edges in findings.summary(read)["sure"]
    text = Page(comparison_report.build(folder).read_text(encoding="utf-8")).text
    assert "encoding 0.01 0.03 0.1 × 1 × 30 used remark" in text
    assert re.search(r"t5 2\.500 2\.400 2\.600 2\.600 2\.400 0\.03 \(× 30\)", text)
    assert re.search(r"alibi 2\.900 2\.500 2\.800 — — 0\.03 ", text)
    listed = {
        (r["encoding"], r["learning_rate"], r["encoding_rate"]): r
        for r in table(folder / "rates.csv")
    }
    assert len(listed) == 12 and listed["t5", "0.03", "30.0"]["used"] == "True"
    assert "0.03 (× 30)" in printed(folder)


def test_one_stated_rate_is_no_grid_that_could_have_an_edge():
    losses = {(0.01, multiple): abs(multiple - 10) for multiple in (1.0, 10.0, 30.0)}
    assert learning_rates._remark(losses, (0.01, 10.0)) == ""
    assert learning_rates._remark(losses, (0.01, 30.0)).startswith("the greatest multiple for")


def test_ties_of_a_check_go_to_the_least_rate_and_then_the_least_multiple():
    best = results.best_rate
    assert best({(0.1, 1.0): 2.0, (0.01, 30.0): 2.0, (0.01, 10.0): 2.0}) == (0.01, 10.0)
    assert best({(0.1, 1.0): 1.9, (0.01, 30.0): 2.0}) == (0.1, 1.0)
    assert best({(0.1, 1.0): np.inf, (0.01, 30.0): np.inf}) == (0.01, 30.0)


def test_one_stated_rate_of_encodings_is_told_and_older_checks_are_found(fake):
    folder = fake(["rope", "t5"], speed=False, encoding_rate=30.0)
    words = "one learning rate for all (0.001, 30 times that for parameters of encodings)"
    read = results.read(folder)
    assert learning_rates.rate_words(read) == words
    assert learning_rates.rate_used(read, read.scheme("t5")) == "0.001 (× 30)"
    path = folder / "runs" / "rope" / "seed0" / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"encoding_parameters": 0}))
    read = results.read(folder)
    assert (
        learning_rates.rate_used(read, read.scheme("rope")) == "0.001"
    )  # nothing learns at another
    older = folder / "rates" / "rope" / "0.01" / "evaluation.json"
    older.parent.mkdir(parents=True)
    losses = {"non-overlapping": {"64": [2.5]}}
    older.write_text(json.dumps({"status": "ok", "losses": losses}))
    checks = results.read_checks(folder, "rope", [(0.01, 1), (0.01, 30)], 0)
    assert results.rate_losses(checks, 64) == {(0.01, 1.0): 2.5, (0.01, 30.0): np.inf}


PEAK, EVERY, LAST = 0.01, 50, 400


def evaluated(folder, curves):
    """Metrics with a cosine decay to a tenth, and a loss at the training length every 50 steps."""
    for name, loss in curves.items():
        for run in (folder / "runs" / name).glob("seed*"):
            rows = []
            for step in (1, *range(10, LAST + 1, 10)):
                decay = 0.1 + 0.45 * (1 + np.cos(np.pi * step / LAST))
                row = {"step": step, "loss": 2.5, "learning_rate": PEAK * decay}
                own = 0.001 * int(run.name[-1]) - 0.001  # of the seed
                rows.append(row | ({} if step % EVERY else {"eval_loss": loss(step, decay) + own}))
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (run / "metrics.jsonl").write_text(lines, encoding="utf-8")


def falling(rate, bottom=2.0, settles=0.0):
    """A loss that falls with the work done to a bottom, and by the decay itself at the end."""
    at = np.arange(LAST + 1)
    work = np.cumsum(0.1 + 0.45 * (1 + np.cos(np.pi * at / LAST)))

    def loss(step, decay):
        return bottom + 2 * np.exp(-rate * work[step]) - settles * (1 - decay)

    return loss


def test_a_scheme_that_is_late_is_told_from_one_that_is_worse(fake, no_portraits):
    # As fast as rope at that loss (alibi: half as far; nope: half as fast); t5 and shaw have ended.
    names = ["rope", "alibi", "nope", "t5", "shaw"]
    curves = {"rope": falling(0.02, 2.0, 0.1), "alibi": lambda step, decay: half(step // 2, decay)}
    half, slow = falling(0.02, 2.0, 0.1), falling(0.004, 2.2, 0.1)
    curves |= {"nope": slow, "t5": falling(0.03, 2.5, 0.1), "shaw": falling(0.03, 2.5, 0.2)}
    folder = fake(names, speed=False, secondary={"protocol": "non-overlapping", "length": TRAIN})
    assert still_falling(results.read(folder)) == {}
    evaluated(folder, curves)
    read = results.read(folder)
    late = still_falling(read)
    assert set(late) == {"alibi"}
    ours, best = (curve(read.scheme(name)) for name in ("alibi", "rope"))
    fall = ours.losses[-2] - ours.losses[-1]
    assert late["alibi"].startswith(f"still falling: {fall:.3f} nats over the last 50 steps; the")
    k = np.flatnonzero(best.losses < ours.losses[-1])[0]
    there = (best.losses[k - 1] - best.losses[k]) / np.diff(best.work)[k - 1]
    assert (
        f"rope, fell {there * (ours.work[-1] - ours.work[-2]):.3f} at that level" in late["alibi"]
    )
    (sure,) = [x for x in findings.summary(read)["sure"] if "Undertrained" in x]
    assert sure.startswith("Undertrained, perhaps, rather than worse: alibi. At the end")
    text = Page(comparison_report.build(folder).read_text(encoding="utf-8")).text
    assert text.count("till falling: ") == 1 and sure in text  # on its card; how sure
    rows = [r for r in table(folder / "figures" / "loss-by-step.csv") if r["encoding"] == "alibi"]
    assert [int(r["step"]) for r in rows] == list(range(EVERY, LAST + 1, EVERY))
    np.testing.assert_allclose([float(r["mean"]) for r in rows], ours.losses)
    assert (folder / "figures" / "loss-by-step.png").is_file()


def test_what_the_decay_itself_takes_off_is_no_sign_of_being_late(fake):
    folder = fake(["rope", "t5"], speed=False)
    evaluated(folder, {"rope": falling(0.1, 2.0, 0.5), "t5": falling(0.1, 2.17, 0.3)})
    read = results.read(folder)
    best, ours = (curve(read.scheme(name)) for name in ("rope", "t5"))
    k = np.flatnonzero(best.losses < ours.losses[-1])[0]
    slopes = [-np.diff(c.losses)[at] / np.diff(c.work)[at] for c, at in ((best, k - 1), (ours, -1))]
    assert slopes[1] > slopes[0]  # but rope falls more over the same last steps, of the same decay
    assert still_falling(read) == {}


def test_without_losses_of_all_seeds_nothing_is_said_of_a_curve(fake):
    folder = fake(["rope", "alibi"], speed=False)
    assert comparison_report.figures.loss_by_step(results.read(folder)) is None
    evaluated(folder, {"rope": falling(0.02)})
    drawn = comparison_report.figures.loss_by_step(results.read(folder))
    assert ("alibi", None, None, "", "not evaluated in seeds 0, 1, 2") in drawn.rows
    (folder / "runs" / "rope" / "seed1" / "evaluation.json").unlink()
    assert curve(results.read(folder).scheme("rope")) == "missing seed 1"


def test_work_counts_steps_by_their_learning_rate(fake):
    folder = fake(["rope"], seeds=(0,), speed=False)
    rows = [(0, 0.0, 3.0), (10, 0.1, 2.9), (20, 0.1, 2.8), (30, 0.0, 2.7)]
    keys = ("step", "learning_rate", "eval_loss")
    lines = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
    path = folder / "runs" / "rope" / "seed0" / "metrics.jsonl"
    path.write_text(lines)
    np.testing.assert_allclose(curve(results.read(folder).scheme("rope")).work, [0, 5, 15, 20])
    path.write_text(lines.replace("learning_rate", "other"))
    np.testing.assert_allclose(curve(results.read(folder).scheme("rope")).work, [0, 10, 20, 30])


def test_what_others_published_is_marked_as_theirs_and_in_no_table_of_ours(whole, page):
    assert page.text.count("Theirs, not ours: ") == 3 and "132.41" in page.text
    assert "Levels do not compare" in page.text
    assert not any("132.41" in path.read_text() for path in whole.rglob("*.csv"))


def test_speeds_of_others_and_ours_are_ratios_of_time_where_less_is_better(page):
    head, rows = published_results.SPEED.head, published_results.SPEED.rows
    sinusoidal, rotary, t5, alibi = rows
    assert sinusoidal == (1, 1, 1, 19.2)
    np.testing.assert_allclose(rotary[:3], [26 / 17.7, 77.8 / 39.4, 22.8 / 19.2])
    assert min(t5[:3]) > 1 and t5[1] == max(row[1] for row in rows)  # the slowest of all
    assert all("less is better" in words for words in head if "÷" in words)
    assert "training, time ÷ sinusoidal (less is better)" in page.text and "1.47" in page.text
    there, ratio = {"batch": 4}, statistics.ratio([3.0], [2.0])
    cell = findings.speed_cell("eval_ms", {"eval_ms": [2.0, 3.0, 4.0]}, ratio, 64, there)
    assert cell == "11.72 (1.50×)"  # 3 ms of 256 tokens
    assert findings.speed_cell("decode_ms", {"decode_ms": [1.0]}, None, 64, there) == "250.00"


@pytest.fixture
def no_portraits(monkeypatch):
    """Reports without pictures of the schemes, which take most of their time."""

    def skipped(*_):
        raise ValueError("left out")

    monkeypatch.setattr(comparison_report.trained_scheme_pictures, "draw", skipped)


def test_what_was_added_or_left_out_after_a_report_is_noted(fake, no_portraits):
    folder = fake(["nope", "rope", "alibi"], speed=False)

    def notes(**fields):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        comparison_report.build(folder)
        found = findings.irregularities(results.read(folder))
        return [note for note in found if "There was a report before" in note]

    assert notes() == [] and notes() == []
    fewer = [{"name": name, "spec": name} for name in ("nope", "rope")]
    (found,) = notes(encodings=fewer)
    assert "of seeds 0, 1, 2 and of nope, rope, alibi" in found
    assert len(notes(seeds=[0, 1])) == 2
    assert "There was a report before" in (folder / "report.html").read_text()


def test_a_scheme_that_ran_out_of_memory_in_timing_is_told(fake, no_portraits):
    folder = fake(["nope", "rope", "alibi"])
    path = folder / "speed.json"
    speed = json.loads(path.read_text())
    one = dict(speed["encodings"]["nope"])
    speed["encodings"]["rope"] = {"problem": "out of memory beside 2 programs of the others"}
    speed["lengths"] = {
        "64": {"batch": 4, "encodings": {"nope": {"problem": "out of memory"}, "alibi": one}}
    }
    path.write_text(json.dumps(speed))
    comparison_report.build(folder)
    page = Page((folder / "report.html").read_text()).text
    assert page.count("out of memory beside 2 programs of the others") == 2  # table, irregularities
    rows = [r for r in table(folder / "speed.csv") if r["encoding"] == "rope"]
    assert [r["problem"] for r in rows] == ["out of memory beside 2 programs of the others"]
    assert (
        "Training step, by length: microseconds per token" in page
    )  # without a ratio, as without nope
    speed["encodings"]["nope"] = {"problem": "out of memory"}
    path.write_text(json.dumps(speed))
    comparison_report.build(folder)
    page = Page((folder / "report.html").read_text()).text
    assert "No ratios: nope was not timed." in page and "Not measured." not in page


def test_a_rate_that_no_run_used_is_not_shown(fake):
    folder = fake(["nope", "rope"], seeds=(0,), speed=False, rates=[0.1, 0.2], rate_steps=5)
    (scheme, _) = results.read(folder).schemes
    assert learning_rates.rate_used(results.read(folder), scheme) == "—"
    plain = results.read(fake(["nope", "rope"], seeds=(0,), speed=False))
    assert learning_rates.rate_used(plain, plain.schemes[0]) == "0.001"


def test_a_corpus_that_is_not_the_published_one_is_noted(fake, no_portraits):
    corpus = {"name": "embedded", "digest": "0123", "describe": "five wheels"}
    plain = findings.irregularities(results.read(fake(["nope", "rope"], corpus=corpus)))
    corpus["warning"] = "the embedded corpus (sha256 0123) is not that of the published numbers"
    folder = fake(["nope", "rope"], corpus=corpus)
    notes = findings.irregularities(results.read(folder))
    sentence = "The embedded corpus (sha256 0123) is not that of the published numbers."
    assert set(notes) - set(plain) == {sentence}
    comparison_report.build(folder)
    assert sentence in (folder / "report.html").read_text(encoding="utf-8")


def test_runs_of_other_code_are_noted(fake):
    folder = fake(["nope", "rope"], seeds=(0, 1))
    path = folder / "runs" / "nope" / "seed0" / "evaluation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit": "89ab"}))
    notes = findings.irregularities(results.read(folder))
    assert "Not the same commit in all runs: unknown (3), 89ab (1)." in notes
    assert not [note for note in notes if "device" in note]
