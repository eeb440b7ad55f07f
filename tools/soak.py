"""Kills the trainer at random moments, continues it, and compares all bits with an unkilled run.

    python -m tools.soak --minutes=10 --json=runs/soak.json

Every process of a run but the last gets a signal, `kill -9` half of the time: while it starts,
trains or saves. It must end within `PATIENCE` seconds. Then the SHA-256 of parameters, optimizer
and counts must be that of a run that was never killed, and the metrics must be the same rows, each
once. Exit status 1 if they are not.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import string
import sys
import time
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from absl import app, flags, logging

from experiments.reporting import results
from experiments.running.command import launch
from experiments.running.files.provenance import commit, save_json
from pe_jax.training import manifest
from pe_jax.training.checkpoint import TEMPORARY, Checkpoints
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError
from tools import trainer_process

STEPS, SAVE_EVERY = 60, 5
SIGNALS = (signal.SIGKILL,) * 4 + (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
PATIENCE = 30  # seconds until a process must have ended, saved or not
LATE = 0.1  # seconds at most from the awaited moment to the kill: a save takes about as long
CONFIG = Path(__file__).parents[1] / "configs" / "train.py"
SMALL = {  # dropout, random positions and packing: their random state must be restored exactly
    "length": 32,
    "positions": "randomized(maximum=64)",
    "batch": 8,
    "log_every": 1,
    "eval.lengths": "(32,)",
    "eval.windows": 2,
    "model.width": 32,
    "model.layers": 2,
    "model.dropout": 0.1,
    "optimizer.warmup": 5,
}


def settings(workdir: Path, data: Path, steps: int, save_every: int) -> list[str]:
    """The flags of a small run."""
    fields = {"workdir": workdir, "data": f"text:{data}", "steps": steps, "save_every": save_every}
    return [f"--config={CONFIG}", *(f"--config.{k}={v}" for k, v in {**fields, **SMALL}.items())]


def write_text(folder: Path, files: int = 40) -> Path:
    """A corpus of random words, one document per file."""
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(1, 9))) for _ in range(99)]
    for split in ("train", "validation", "test"):
        (folder / split).mkdir(parents=True)
        for k in range(files):
            text = " ".join(draw.choices(words, k=draw.randint(10, 400)))
            (folder / split / f"{k:02}").write_text(text)
    return folder


def digest(workdir: Path) -> tuple[str, int]:
    """SHA-256 and size in bytes of all numbers of the last checkpoint."""
    import jax  # not before processes are forked: it opens devices

    with contextlib.closing(Checkpoints(workdir / "checkpoints", read_only=True)) as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise ConfigError(f"{workdir} holds no checkpoint")
        checkpoints.check(step)
        args = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = jax.device_get(checkpoints.manager.restore(step, args=args)["state"])
    sha256 = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        sha256.update(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}\n".encode())
        sha256.update(x.tobytes())
    return sha256.hexdigest(), sum(x.nbytes for x in jax.tree.leaves(state))


def rows(workdir: Path) -> list[tuple]:
    """Step, loss, norm and skips of every row of the metrics."""
    path = workdir / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines())
    return [(x["step"], x["loss"], x["gradient_norm"], x["skipped"]) for x in lines]


def last_logged(workdir: Path) -> int:
    """The last step in the metrics, which a run may be writing."""
    rows, _, _ = results.read_metrics(workdir / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def last_saved(workdir: Path) -> int:
    """The last step with a complete checkpoint."""
    names = (path.parent.name for path in workdir.glob(f"checkpoints/*/{manifest.NAME}"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def unfinished(workdir: Path) -> set[tuple[str, int]]:
    """The folders of incomplete saves."""
    steps = workdir.glob("checkpoints/[0-9]*")
    with contextlib.suppress(FileNotFoundError):  # finished just now
        return {
            (path.name, path.stat().st_mtime_ns)
            for path in steps
            if TEMPORARY in path.name or not (path / manifest.NAME).exists()
        }
    return set()


def written(workdir: Path) -> int:
    """The time at which a row of metrics was last written."""
    path = workdir / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


@dataclasses.dataclass
class Life:
    """A process that got a signal: what it was doing, and how many unsaved steps it had done."""

    moment: str
    lost: int
    signal: str


def live(flags: list[str], workdir: Path, log: Path, draw: random.Random) -> Life | None:
    """Starts or continues a run and ends it at a random moment; None if it finished before.

    Raises:
      RuntimeError: it failed by itself.
    """
    aim = draw.choice(("start", "step", "save"))
    saves, rows_before = unfinished(workdir), written(workdir)
    goal, wait = last_saved(workdir) + draw.randint(1, 2 * SAVE_EVERY), draw.uniform(0, 4)
    process, begin = trainer_process.start(flags, log), time.monotonic()
    reached = {
        "start": lambda: time.monotonic() - begin > wait or written(workdir) > rows_before,
        "step": lambda: last_logged(workdir) >= goal and written(workdir) > rows_before,
        "save": lambda: unfinished(workdir) - saves,
    }[aim]
    while process.is_alive() and not reached():
        time.sleep(0.001)
    time.sleep(0 if aim == "start" else draw.uniform(0, LATE))
    number = draw.choice(SIGNALS)
    with contextlib.suppress(ProcessLookupError):  # it has finished
        os.kill(process.pid or 0, number)
    process.join(PATIENCE)
    if process.exitcode == 0:
        return None
    if process.exitcode not in (-number, 128 + number):
        process.kill()
        raise RuntimeError(f"after {number.name}: {_ended(process.exitcode, log)}")
    trained = written(workdir) > rows_before
    moment = "saving" if unfinished(workdir) - saves else "training" if trained else "starting"
    lost = max(last_logged(workdir) - last_saved(workdir), 0) if trained else 0
    return Life(moment, lost, number.name)


def finish(flags: list[str], log: Path) -> None:
    """Runs to the end; RuntimeError if the exit status is not 0."""
    process = trainer_process.start(flags, log)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(_ended(process.exitcode, log))


def _ended(status: int | None, log: Path) -> str:
    last = " | ".join(log.read_text("utf-8", "replace").splitlines()[-5:])
    return f"exit status {status}, {log}: {last}"


def one_run(folder: Path, data: Path, kills: int, draw: random.Random, until: float) -> list[Life]:
    """One run with kills, to its end."""
    flags, log, lives = settings(folder, data, STEPS, SAVE_EVERY), folder.with_suffix(".log"), []
    while len(lives) < kills and time.monotonic() < until:
        life = live(flags, folder, log, draw)
        if life is None:
            break
        lives.append(life)
        logging.info("%s %d: %s, %d steps lost", life.signal, len(lives), life.moment, life.lost)
    finish(flags, log)
    return lives


def main(_: list[str]) -> None:
    """Runs once without kills, then with kills until the time is up; writes the figures."""
    launch.quiet_libraries()
    options = flags.FLAGS
    begin, folder = time.monotonic(), local("folder", options.folder).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    data = write_text(folder / "text")
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    draw, until = random.Random(options.seed), begin + 60 * options.minutes
    finish(settings(folder / "unkilled", data, STEPS, SAVE_EVERY), folder / "unkilled.log")
    runs: list[Path] = []
    lives: list[Life] = []
    while not runs or time.monotonic() < until:
        runs.append(folder / f"killed{len(runs)}")
        lives += one_run(runs[-1], data, options.kills, draw, until)
        logging.info("run %d is finished", len(runs))
    report = figures(folder / "unkilled", runs, lives)
    report |= {"seconds": round(time.monotonic() - begin), "seed": options.seed}
    report |= {"commit": commit(), "machine": f"{os.cpu_count()} × {platform.machine()}"}
    report["ok"] = good(report)
    save_json(local("json", options.json) if options.json else folder / "soak.json", report)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


def figures(unkilled: Path, runs: list[Path], lives: list[Life]) -> dict[str, Any]:
    """The comparison of runs with the unkilled one, for JSON."""
    want, size = digest(unkilled)
    lost = [life.lost for life in lives]
    return {
        "runs": len(runs),
        "kills": len(lives),
        "kills_by_moment": dict(collections.Counter(life.moment for life in lives)),
        "kills_by_signal": dict(collections.Counter(life.signal for life in lives)),
        "resumes": len(lives),
        "save_every": SAVE_EVERY,
        "steps_lost_most": max(lost, default=0),
        "bytes_compared": size * len(runs),
        "mismatches": sum(digest(run)[0] != want for run in runs),
        "rows_compared": STEPS * len(runs),
        "runs_with_other_rows": sum(rows(run) != rows(unkilled) for run in runs),
        "sha256": want,
    }


def good(report: dict[str, Any]) -> bool:
    """Whether all bits and rows agree, and no more than a save interval was lost."""
    bad = report["mismatches"], report["runs_with_other_rows"]
    return bad == (0, 0) and report["steps_lost_most"] <= report["save_every"]


if __name__ == "__main__":
    flags.DEFINE_float("minutes", 10, "no kill after this time", lower_bound=0)
    flags.DEFINE_integer("kills", 20, "greatest number of kills per run", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "of the moments of kills", lower_bound=0)
    flags.DEFINE_string("folder", "runs/soak", "folder of the runs; it is emptied")
    flags.DEFINE_string("json", "", "file of the figures; by default FOLDER/soak.json")
    app.run(main)
