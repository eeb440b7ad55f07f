"""What every program leaves about itself: its commit, and files that are whole."""

import functools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax


@functools.cache
def commit() -> str:
    """The commit of this checkout, if it is one and git is here."""
    git = shutil.which("git")
    if git is None:
        return "unknown: git is not installed"
    found = subprocess.run(
        [git, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return found.stdout.strip() or "not a git checkout"


def made() -> dict[str, str]:
    """What a run keeps beside its numbers, as a later call may be of other code, elsewhere."""
    kind = jax.devices()[0].device_kind
    return {"commit": commit(), "device": f"{len(jax.devices())} × {kind}", "jax": jax.__version__}


def together(runs: Iterable[dict]) -> dict[str, str]:
    """What all of these runs were made with: each value once."""
    listed = list(runs)
    return {
        field: ", ".join(sorted({run.get(field, "unknown") for run in listed})) for field in made()
    }


def command(program: str) -> str:
    """What started this one of `experiments`."""
    return shlex.join(["python", "-m", f"experiments.{program}", *sys.argv[1:]])


def save_json(path: Path, value: Any) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)
