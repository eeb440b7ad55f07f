"""Programs with absl flags, one per file."""

import contextlib
import os
import sys
from pathlib import Path

# A notebook passes its matplotlib back end to the programs that it starts, and matplotlib fails if
# that one is not installed. Figures are drawn without one; the notebook's own process keeps it.
if "ipykernel" not in sys.modules:
    os.environ.pop("MPLBACKEND", None)


def _ask_for_huge_pages() -> None:
    """Starts `python -m experiments.PROGRAM` again with malloc asking for huge pages, if it must.

    XLA allocates the temporaries of each call anew on a CPU, and Linux clears them in pages of 4
    KiB, a third of the time of a training step (docs/performance.md); NumPy asks for pages of 2 MiB
    itself. glibc does from version 2.35 on, if a variable says so before the process starts.
    """
    policy, mark = Path("/sys/kernel/mm/transparent_hugepage/enabled"), "PE_JAX_STARTED_AGAIN"
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    is_program = sys.argv[:1] == ["-m"]  # as Python has it while it looks for the module
    if not is_program or mark in os.environ or "glibc.malloc.hugetlb" in tunables:
        return
    with contextlib.suppress(OSError, ValueError):  # else it runs as it is
        if "[madvise]" in policy.read_text():  # pages are huge without asking, or never
            asking = f"{tunables}:glibc.malloc.hugetlb=1".lstrip(":")
            # A Python with capabilities loses the tunables: the mark says that it was tried.
            os.environ |= {"GLIBC_TUNABLES": asking, mark: "1"}
            os.execv(os.readlink("/proc/self/exe"), sys.orig_argv)


_ask_for_huge_pages()
