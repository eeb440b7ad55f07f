"""How programs report errors that the user can fix: one line, and exit status 2."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a ValueError or OSError into one line and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        exit_with(str(error))


def exit_with(message: str) -> None:
    """Prints a message on one line and exits with status 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
