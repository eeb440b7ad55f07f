"""Programs with absl flags, one per file."""

import os
import sys

# A notebook passes its matplotlib back end to the programs that it starts, and matplotlib fails if
# that one is not installed. Figures are drawn without one; the notebook's own process keeps it.
if "ipykernel" not in sys.modules:
    os.environ.pop("MPLBACKEND", None)
