"""Kills the trainer at random moments, continues it, and compares all its bits with a run in peace.

    python -m tools.soak --minutes=10 --json=runs/soak.json

Every life of a run ends with `kill -9`: while it starts, trains or saves. The last one finishes.
Then the SHA-256 of parameters, optimizer and counts must be that of the run that was left alone,
and its metrics must be the same rows, each once. Exit status 1 where they are not.
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
from experiments.running import launch, trainer_process
from experiments.running.provenance import commit, save_json
from pe_jax.training import manifest
from pe_jax.training.checkpoint import TEMPORARY, Checkpoints

STEPS, SAVE_EVERY = 60, 5
LATE = 0.1  # seconds at most from what was waited for to the kill: a save takes about as long
CONFIG = Path(__file__).parents[1] / "configs" / "train.py"
SMALL = {  # dropout, random positions and packing draw in every step: all must go on where it was
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
    """SHA-256 of all numbers of the last checkpoint, and how many bytes they are."""
    import jax  # its devices, which a process that forks must not have

    with contextlib.closing(Checkpoints(workdir / "checkpoints", read_only=True)) as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise ValueError(f"{workdir} holds no checkpoint")
        checkpoints.check(step)
        args = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = jax.device_get(checkpoints.manager.restore(step, args=args)["state"])
    sha256 = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        sha256.update(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}\n".encode())
        sha256.update(x.tobytes())
    return sha256.hexdigest(), sum(x.nbytes for x in jax.tree.leaves(state))


def rows(workdir: Path) -> list[tuple]:
    """Step, loss, norm and skips of every row, as they are in the file."""
    path = workdir / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines())
    return [(x["step"], x["loss"], x["gradient_norm"], x["skipped"]) for x in lines]


def last_logged(workdir: Path) -> int:
    """The last step in the metrics of a run that may be writing them."""
    rows, _, _ = results.read_metrics(workdir / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def last_saved(workdir: Path) -> int:
    """The last step that was saved whole."""
    names = (path.parent.name for path in workdir.glob(f"checkpoints/*/{manifest.NAME}"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def unfinished(workdir: Path) -> set[tuple[str, int]]:
    """The folders of saves that are under way, or were when the process was killed."""
    steps = workdir.glob("checkpoints/[0-9]*")
    with contextlib.suppress(FileNotFoundError):  # finished in this moment
        return {
            (path.name, path.stat().st_mtime_ns)
            for path in steps
            if TEMPORARY in path.name or not (path / manifest.NAME).exists()
        }
    return set()


def written(workdir: Path) -> int:
    """When a row of metrics was last written."""
    path = workdir / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


@dataclasses.dataclass
class Life:
    """From a start to a kill: what it was doing, and how many steps it had done and not saved."""

    moment: str
    lost: int


def live(flags: list[str], workdir: Path, log: Path, draw: random.Random) -> Life | None:
    """Starts or continues a run and kills it at a moment by chance; None where it was faster.

    Raises:
      RuntimeError: it ended by itself, and not well.
    """
    aim = draw.choice(("start", "step", "save"))
    left, rows_before = unfinished(workdir), written(workdir)
    goal, wait = last_saved(workdir) + draw.randint(1, 2 * SAVE_EVERY), draw.uniform(0, 4)
    process, begin = trainer_process.start(flags, log), time.monotonic()
    reached = {
        "start": lambda: time.monotonic() - begin > wait or written(workdir) > rows_before,
        "step": lambda: last_logged(workdir) >= goal and written(workdir) > rows_before,
        "save": lambda: unfinished(workdir) - left,
    }[aim]
    while process.is_alive() and not reached():
        time.sleep(0.001)
    time.sleep(0 if aim == "start" else draw.uniform(0, LATE))
    process.kill()
    process.join()
    if process.exitcode == 0:
        return None
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(_ended(process.exitcode, log))
    begun = written(workdir) > rows_before
    moment = "saving" if unfinished(workdir) - left else "training" if begun else "starting"
    return Life(moment, max(last_logged(workdir) - last_saved(workdir), 0) if begun else 0)


def finish(flags: list[str], log: Path) -> None:
    """Runs to the end.

    Raises:
      RuntimeError: it ends with another status than 0.
    """
    process = trainer_process.start(flags, log)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(_ended(process.exitcode, log))


def _ended(status: int | None, log: Path) -> str:
    last = " | ".join(log.read_text("utf-8", "replace").splitlines()[-5:])
    return f"exit status {status}, {log}: {last}"


def one_run(folder: Path, data: Path, kills: int, draw: random.Random, until: float) -> list[Life]:
    """One run with its kills, to its end."""
    flags, log, lives = settings(folder, data, STEPS, SAVE_EVERY), folder.with_suffix(".log"), []
    while len(lives) < kills and time.monotonic() < until:
        life = live(flags, folder, log, draw)
        if life is None:
            break
        lives.append(life)
        logging.info("kill %d: %s, %d steps lost", len(lives), life.moment, life.lost)
    finish(flags, log)
    return lives


def main(_: list[str]) -> None:
    """Runs in peace once, then with kills until the time is up; prints and writes the figures."""
    launch.quiet_libraries()
    given = flags.FLAGS
    begin, folder = time.monotonic(), Path(given.folder).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    data = write_text(folder / "text")
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    draw, until = random.Random(given.seed), begin + 60 * given.minutes
    finish(settings(folder / "peace", data, STEPS, SAVE_EVERY), folder / "peace.log")
    runs: list[Path] = []
    lives: list[Life] = []
    while not runs or time.monotonic() < until:
        runs.append(folder / f"killed{len(runs)}")
        lives += one_run(runs[-1], data, given.kills, draw, until)
        logging.info("run %d is finished", len(runs))
    report = figures(folder / "peace", runs, lives)
    report |= {"seconds": round(time.monotonic() - begin), "seed": given.seed, "commit": commit()}
    report |= {"machine": f"{os.cpu_count()} × {platform.machine()}", "ok": good(report)}
    save_json(Path(given.json or folder / "soak.json"), report)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


def figures(peace: Path, runs: list[Path], lives: list[Life]) -> dict[str, Any]:
    """What was found, as JSON has it."""
    want, size = digest(peace)
    lost = [life.lost for life in lives]
    return {
        "runs": len(runs),
        "kills": len(lives),
        "kills_by_moment": dict(collections.Counter(life.moment for life in lives)),
        "resumes": len(lives),
        "save_every": SAVE_EVERY,
        "steps_lost_most": max(lost, default=0),
        "bytes_compared": size * len(runs),
        "mismatches": sum(digest(run)[0] != want for run in runs),
        "rows_compared": STEPS * len(runs),
        "runs_with_other_rows": sum(rows(run) != rows(peace) for run in runs),
        "sha256": want,
    }


def good(report: dict[str, Any]) -> bool:
    """Whether nothing was lost but what a save interval holds."""
    bad = report["mismatches"], report["runs_with_other_rows"]
    return bad == (0, 0) and report["steps_lost_most"] <= report["save_every"]


if __name__ == "__main__":
    flags.DEFINE_float("minutes", 10, "no kill after this time", lower_bound=0)
    flags.DEFINE_integer("kills", 20, "at most, in one run", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "of the moments", lower_bound=0)
    flags.DEFINE_string("folder", "runs/soak", "for the runs; it is emptied")
    flags.DEFINE_string("json", "", "where the figures go; empty: FOLDER/soak.json")
    app.run(main)
