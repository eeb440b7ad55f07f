"""What every program leaves about itself: its commit, and files that are whole."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any


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


def save_json(path: Path, value: Any) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)
