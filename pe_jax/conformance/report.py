"""What was found: one row per probe, printed as a table."""

import dataclasses
from typing import Any

VERDICTS = ("held", "broken", "blind", "note", "skipped")


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one probe.

    Attributes:
      probe: its name.
      verdict: "held"; "broken"; "blind": the probe could not have seen a fault; "note": a fact that
        accuses nobody; "skipped": it could not run.
      units: the size of the difference; 1 is what one position off does to the logits (or, where
        positions cannot be passed, two tokens swapped). None where no numbers are compared.
      first: where it begins.
      cause: what usually causes it, or why it was skipped, or what was read.
    """

    probe: str
    verdict: str
    units: float | None = None
    first: str = ""
    cause: str = ""

    def __str__(self):
        units = "" if self.units is None else f"{self.units:.2g}"
        return f"{self.probe:22} {self.verdict:8} {units:>8}  {self.first:12} {self.cause}".rstrip()


@dataclasses.dataclass(frozen=True)
class Report:
    """The rows of all probes, and what was measured on the way; `print` shows the table."""

    rows: tuple[Row, ...]
    facts: dict[str, Any]

    @property
    def broken(self) -> tuple[Row, ...]:
        """The rows of laws that do not hold."""
        return tuple(row for row in self.rows if row.verdict == "broken")

    @property
    def ok(self) -> bool:
        """Whether no law is broken: blind and skipped probes have seen nothing."""
        return not self.broken

    def __getitem__(self, probe: str) -> Row:
        """The row of a probe; KeyError if there is none."""
        return {row.probe: row for row in self.rows}[probe]

    def __str__(self):
        head = f"{'probe':22} {'verdict':8} {'units':>8}  {'first':12} usual cause"
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        return "\n".join([head, *map(str, self.rows), facts])
