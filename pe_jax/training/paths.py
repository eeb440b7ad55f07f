"""Paths as users type them, which a shell leaves as they are after `=`; and folders in buckets."""

import contextlib
import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pe_jax.validation import ConfigError

BUCKETS = "gs://"


def local(field: str, text: str) -> Path:
    """The path of a text, with `~` expanded.

    Raises:
      ConfigError: it is the address of a bucket or of a file, as `s3://…` (a folder of that name
        would be made), or there is no such home.
    """
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        fix = "leave out file://" if scheme[0].lower() == "file:/" else "mount the bucket"
        raise ConfigError(f"{field}={text!r}: must be a path of this machine; {fix}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{field}={text!r}: {error}; pass the whole path") from None


def is_bucket(path: Any) -> bool:
    """Whether a path is in a bucket of Google Cloud Storage."""
    return str(path).startswith(BUCKETS)


def folder(text: str) -> Path:
    """The folder of a run: a Path, or in a bucket an `epath.Path`, which has its methods."""
    if not is_bucket(text):
        return Path(text)
    from etils import epath
    from fsspec.config import conf

    # cached listings of fsspec lack what tensorstore writes
    conf.setdefault("gcs", {})["use_listings_cache"] = False
    return epath.Path(text)  # pyright: ignore[reportReturnType]


def check_bucket(path: Path) -> None:
    """Raises ConfigError or OSError if a bucket cannot be read; nothing is written."""
    if importlib.util.find_spec("gcsfs") is None:
        raise ConfigError(f"workdir={str(path)!r}: buckets need gcsfs: pip install 'pe_jax[gcs]'")
    with bucket_errors(path, "read"):
        path.exists()


@contextlib.contextmanager
def bucket_errors(folder: Path, act: str) -> Iterator[None]:
    """Raises OSError for any exception, naming the bucket.

    gcsfs, its HTTP client and Google's authentication raise exceptions of many kinds.
    """
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or repr(error)
        raise OSError(f"workdir={str(folder)!r} cannot be {act}: {reason[:300]}") from error


def files(folder: Path) -> list[Path]:
    """All files under a folder."""
    if not is_bucket(folder):
        return [path for path in folder.rglob("*") if path.is_file()]
    import fsspec

    filesystem, top = fsspec.url_to_fs(str(folder))
    names = (name.removeprefix(f"{top}/") for name in filesystem.find(top))
    return [folder / name for name in names if name and not name.endswith("/")]


def remove(folder: Path) -> None:
    """Removes a folder and its contents, if it exists."""
    if is_bucket(folder):
        folder.rmtree(missing_ok=True)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        shutil.rmtree(folder, ignore_errors=True)
