"""The speedrun: entries of finished comparisons, the table that ranks them, the check of one."""

import json
import subprocess
from pathlib import Path

import pytest

from experiments.running.files.manifest import REQUIRED
from pe_jax.validation import ConfigError
from tools import speedrun

SPECS = {"rope": "rope", "learned": "learned(length=64)"}


def comparison(workdir: Path, loss: float = 2.0, **fields) -> Path:
    """A finished comparison of RoPE and a learned table, with three seeds."""
    listed = [{"name": name, "spec": s, "folder": name} for name, s in SPECS.items()]
    manifest = dict.fromkeys(REQUIRED) | {
        "config": {**speedrun.target(), "workdir": str(workdir), **fields},
        "encodings": listed,
        "seeds": [0, 1, 2],
        "train_length": 64,
        "lengths": [64, 128, 512],
        "corpus": {"digest": "of the text"},
        "commit": "0123456789",
        "versions": {"jax": "0.10.2"},
    }
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "manifest.json").write_text(json.dumps(manifest))
    times = {"rope": [1.0, 2.0, 4.0], "learned": [1.5, 2.0, 8.0]}
    speed = {"encodings": {name: {"train_ms": ms} for name, ms in times.items()}}
    (workdir / "speed.json").write_text(json.dumps(speed))
    for name in SPECS:
        for seed in range(3):
            run = workdir / "runs" / name / f"seed{seed}"
            run.mkdir(parents=True, exist_ok=True)
            far = None if name == "learned" else [loss + 1 + seed, loss + 3 + seed]
            losses = {"64": [loss + seed, loss + seed + 0.5], "512": far}
            result = {
                "status": "ok",
                "reason": "",
                "parameters": 7,
                "learning_rate": 0.01,
                "encoding_rate": 10.0,
                "losses": {"non-overlapping": losses},
            }
            (run / "evaluation.json").write_text(json.dumps(result))
            (run / "metrics.jsonl").write_text(f"{seed}\n")
    return workdir


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A page of its own without entries."""
    text = speedrun.PAGE.read_text(encoding="utf-8")
    before, rest = text.split(speedrun.BEGIN)
    page = tmp_path / "speedrun.md"
    page.write_text(before + speedrun.BEGIN + speedrun.END + rest.split(speedrun.END)[1])
    monkeypatch.setattr(speedrun, "PAGE", page)
    monkeypatch.setattr(speedrun, "ENTRIES", tmp_path / "entries")
    return tmp_path


def test_the_page_is_the_generated_one_and_its_entries_are_of_the_config():
    assert speedrun.PAGE.read_text(encoding="utf-8") == speedrun.page(), (
        "run python -m tools.speedrun table"
    )
    for path in speedrun.ENTRIES.glob("*.json"):
        saved = json.loads(path.read_text())
        assert saved["config"] == speedrun.digest(speedrun.target()), path
        assert "-dirty" not in saved["commit"], path


def test_a_comparison_becomes_an_entry_of_each_encoding(site):
    speedrun.add(comparison(site / "run"))
    rope, learned = (json.loads(p.read_text()) for p in sorted(speedrun.ENTRIES.iterdir())[::-1])
    assert rope["losses"] == {"64": [2.25, 3.25, 4.25], "512": [4.0, 5.0, 6.0]}
    assert learned["losses"]["512"] is None and learned["time"] == 1.5 and rope["time"] == 1
    assert len(set(rope["logs"])) == 3 and rope["text"] == "of the text"
    rows = [line for line in speedrun.PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert rows[0].startswith("| **`rope`** | **3.250** | **5.000** | 1.00 | 0.01 (× 10) |")
    assert rows[1].startswith("| `learned(length=64)` | 3.250 | — | 1.50 |")


def test_an_entry_with_both_losses_higher_is_not_ahead():
    def of(near, far):
        kept = ("time", "learning_rate", "encoding_rate", "date", "commit")
        rest = dict.fromkeys(kept, 1) | {"date": "d", "commit": "c", "encoding": f"{near}"}
        return {"losses": {"64": [near], "512": [far]}, **rest}

    rows = speedrun.table([of(2.0, 3.0), of(1.9, 3.1), of(2.1, 3.2)]).splitlines()[2:]
    assert [row.startswith("| **") for row in rows] == [True, True, False]


def test_a_rate_at_an_edge_of_the_grid_is_marked():
    e = json.loads((speedrun.ENTRIES / "t5.json").read_text())
    least, middle, greatest = speedrun.target()["rates"]
    rows = {rate: speedrun.table([{**e, "learning_rate": rate}]) for rate in (least, middle)}
    assert "| 0.005 † (× 10) |" in rows[least] and "| 0.01 (× 10) |" in rows[middle]
    assert e["learning_rate"] == greatest and "| 0.02 † (× 10) |" in speedrun.table([e])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"steps": 2000}, "steps differ from"), ({"data": "text:mine"}, "data differ from")],
)
def test_another_budget_is_no_entry(site, change, message):
    with pytest.raises(ConfigError, match=message):
        speedrun.add(comparison(site / "run", **change))


def test_what_is_not_finished_is_no_entry(site):
    run = comparison(site / "run")
    with pytest.raises(ConfigError, match="holds no manifest"):
        speedrun.add(site / "elsewhere")
    (run / "runs" / "learned" / "seed1" / "evaluation.json").unlink()
    with pytest.raises(ConfigError, match="learned at 64: missing seed 1"):
        speedrun.add(run)


@pytest.mark.parametrize(("loss", "agrees"), [(2.02, True), (2.05, False)])
def test_a_check_trains_the_first_seed_again(site, monkeypatch, capsys, loss, agrees):
    speedrun.add(comparison(site / "run"))
    commands = []

    def train(command, **_):
        commands.append(command)
        (flag,) = (a for a in command if a.startswith("--config.workdir="))
        comparison(Path(flag.partition("=")[2]), loss)

    monkeypatch.setattr(subprocess, "run", train)
    assert speedrun.check(speedrun.ENTRIES / "rope.json") == agrees
    assert ("DIFFERS" in capsys.readouterr().out) != agrees
    assert {"--config.rates=(0.01,)", "--config.encoding_rates=(10.0,)"} < set(commands[0])


def test_a_check_refuses_what_it_cannot_compare(site):
    path = site / "mine.json"
    with pytest.raises(ConfigError, match="is no entry"):
        speedrun.check(path)
    path.write_text(json.dumps({"losses": {}, "config": "of last year"}))
    with pytest.raises(ConfigError, match="another configs/speedrun"):
        speedrun.check(path)
