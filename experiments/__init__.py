"""Programs with absl flags, one per file."""

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
    policy, tunables = Path("/sys/kernel/mm/transparent_hugepage/enabled"), "GLIBC_TUNABLES"
    set_before = os.environ.get(tunables, "")
    is_program = sys.argv[:1] == ["-m"]  # as Python has it while it looks for the module
    if is_program and "glibc.malloc.hugetlb" not in set_before and policy.exists():
        if "[madvise]" in policy.read_text():  # else pages are huge without asking, or never
            os.environ[tunables] = f"{set_before}:glibc.malloc.hugetlb=1".lstrip(":")
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


_ask_for_huge_pages()
