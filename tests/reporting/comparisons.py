"""Files that a comparison would have written, and the page that a report made of them."""

import html.parser
import io
import json
import re

import jax
import numpy as np
import rich.console

import pe_jax
from experiments.reporting import plotting, results
from experiments.reporting.comparison import report, scheme_pictures
from experiments.running.files.table import read_csv as table  # noqa: F401
from pe_jax.encodings import parse

LENGTHS, SEEDS, TRAIN = (64, 128, 256, 512), (0, 1, 2), 64
DIMS = {"width": 32, "heads": 4, "kv_heads": 2, "head_dim": 8}
GROWTH = {"nope": 0.25, "sinusoidal": 0.9, "learned": 0, "t5": 0.02, "rope": 0.3, "alibi": -0.03}
DRAWN = (*GROWTH, "shaw", "transformer_xl", "buckets", "deberta")
HOSTILE = r"<script>$\frac{&[red]"


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
        }
    speed = {"device": "cpu", "length": TRAIN, "batch": 32, "encodings": found}
    (folder / "speed.json").write_text(json.dumps(speed), encoding="utf-8")


def leave_out_pictures(patch):
    """Figures are drawn, but neither laid out nor saved; pictures of the schemes are left out."""

    def skipped(*_):
        raise ValueError("left out")

    patch.setattr(scheme_pictures, "draw_trained", skipped)
    patch.setattr(plotting, "lay_out", lambda axes: axes.get_figure())
    patch.setattr(plotting, "picture", lambda drawing, path: path.write_bytes(b""))
    patch.setattr(plotting, "vector", lambda *_: "<svg></svg>")


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


def build(folder):
    """Writes the report of a folder."""
    return report.build(results.read(folder))


def printed(folder):
    """What the terminal shows of the verdicts."""
    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(report.summary(results.read(folder)))
    return console.file.getvalue()
