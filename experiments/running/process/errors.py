"""How programs report errors that the user can fix: one line, and exit status 2."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

import jax

from pe_jax.validation import ConfigError


class Refused(SystemExit):
    """The end of a program after an error that was reported on one line."""

    def __init__(self, message: str):
        super().__init__(2)
        self.message = message


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a ConfigError or OSError into one line and exit status 2; others keep a traceback."""
    try:
        yield
    except (ConfigError, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        exit_with(f"{error}{'; free some space, and run it again' if is_full else ''}")
    except (RuntimeError, AssertionError):
        reason = _missing_device()
        if reason is None:
            raise
        platforms = os.environ.get("JAX_PLATFORMS", "")
        exit_with(f"JAX_PLATFORMS={platforms!r}: no such device works here ({reason[:300]})")


def _missing_device() -> str | None:
    """Why JAX finds no device, in its words if it has any; None if it finds one."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition(": ")[2] or "it is not installed"
    return None


def exit_with(message: str) -> NoReturn:
    """Prints a message on one line and exits with status 2."""
    line = " ".join(message.split())
    print(f"error: {line}", file=sys.stderr)
    raise Refused(line)
