"""Comparisons that were never run, as fixtures."""

import json

import pytest

from tests.reporting.browser import browser_path, chromium, pages, visit  # noqa: F401
from tests.reporting.comparisons import (
    DRAWN,
    GROWTH,
    HOSTILE,
    SEEDS,
    Page,
    build,
    leave_out_pictures,
    manifest,
    write_parameters,
    write_run,
    write_speed,
)


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
    build(folder)
    return folder


@pytest.fixture(scope="session")
def page(whole):
    return Page((whole / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def no_pictures(monkeypatch):
    """Reports whose figures are drawn, and neither laid out nor saved as images."""
    leave_out_pictures(monkeypatch)
