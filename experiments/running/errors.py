"""How programs report errors that the user can fix: one line, and exit status 2."""

import contextlib
import os
import sys
from collections.abc import Iterator

from pe_jax.validation import ConfigError

NO_DEVICE = "Unable to initialize backend"  # how JAX begins that message


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a ConfigError or OSError into one line and exit status 2; others keep a traceback."""
    try:
        yield
    except (ConfigError, OSError) as error:
        exit_with(str(error))
    except RuntimeError as error:
        if not str(error).startswith(NO_DEVICE):
            raise
        asked, reason = os.environ.get("JAX_PLATFORMS", ""), str(error).partition(": ")[2]
        exit_with(f"JAX_PLATFORMS={asked!r}: no such device works here ({reason[:300]})")


def exit_with(message: str) -> None:
    """Prints a message on one line and exits with status 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
