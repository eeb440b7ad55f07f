"""How results were made: commit, device, command; files are written atomically."""

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
    """The commit of this checkout, or why it is unknown."""
    git = shutil.which("git")
    if git is None:
        return "unknown: git is not installed"
    described = subprocess.run(
        [git, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return described.stdout.strip() or "not a git checkout"


def environment() -> dict[str, str]:
    """Commit, device and version of JAX, saved with each result: runs may resume elsewhere."""
    kind = jax.devices()[0].device_kind
    return {"commit": commit(), "device": f"{len(jax.devices())} × {kind}", "jax": jax.__version__}


def environments(runs: Iterable[dict]) -> dict[str, str]:
    """The environments of all these runs, each value once."""
    listed = list(runs)
    return {
        field: ", ".join(sorted({run.get(field, "unknown") for run in listed}))
        for field in environment()
    }


def command(program: str) -> str:
    """The command line of this program, a module of `experiments`."""
    return shlex.join(["python", "-m", f"experiments.{program}", *sys.argv[1:]])


def save_json(path: Path, value: Any) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)
