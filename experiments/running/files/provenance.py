"""How results were made: commit, device, command; files are written atomically."""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from pe_jax.training.paths import is_bucket

ROOT = Path(__file__).parents[3]
GIT_FOLDERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set in hooks, of any repository
CODE = ("pe_jax", "experiments", "pyproject.toml", "requirements.txt")  # what results depend on


@functools.cache
def commit(root: Path = ROOT) -> str:
    """The commit of a checkout, or why it is unknown; "-dirty" and a digest if its code differs.

    A workdir in the checkout, tracked or not, is not code; a config is saved with its results.
    """
    git = shutil.which("git")
    if git is None:
        return "unknown: git is not installed"

    local = {name: value for name, value in os.environ.items() if name not in GIT_FOLDERS}

    def output(*args: str) -> str:
        # Git answers in a checkout of another user, as one mounted in a container, if told so.
        call = [git, "-c", f"safe.directory={root.resolve()}", *args]
        process = subprocess.run(call, capture_output=True, text=True, cwd=root, env=local)
        return process.stdout.strip()

    described = output("describe", "--always")
    if not described or not output("ls-files", "--", *CODE):  # in somebody else's repository
        return "not a git checkout"
    changed = output("status", "--porcelain", "--", *CODE)
    if not changed:
        return described
    digest = hashlib.sha256(f"{changed}\n{output('diff', 'HEAD', '--', *CODE)}".encode())
    for name in output("ls-files", "--others", "--exclude-standard", "--", *CODE).splitlines():
        digest.update((root / name).read_bytes() if (root / name).is_file() else b"")
    return f"{described}-dirty-{digest.hexdigest()[:8]}"


def processor() -> str:
    """The CPU's name, if the system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
    """The command line of this program, a module."""
    return shlex.join(["python", "-m", program, *sys.argv[1:]])


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of Python and of these packages, or "not installed"."""
    by_name = {"python": platform.python_version()}
    for package in packages:
        try:
            by_name[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            by_name[package] = "not installed"
    return by_name


def about(program: str, packages: Iterable[str]) -> dict[str, Any]:
    """Command, versions, commit, machine and date of what a program measures."""
    return {
        "command": command(program),
        "versions": versions(packages),
        **environment(),
        "platform": jax.devices()[0].client.platform_version,
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


def save_json(path: Path, value: Any) -> None:
    """Writes a file atomically."""
    if is_bucket(path):  # an object is complete or absent
        path.write_text(json.dumps(value))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value))
        file.flush()
        os.fsync(file.fileno())  # else a machine that dies may leave an empty file of that name
    part.replace(path)
