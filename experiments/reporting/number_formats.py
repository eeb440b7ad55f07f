"""Numbers as the report has them."""

import math


def number(value: float | None, digits: int = 3, signed: bool = False) -> str:
    """A number for a table: a true minus, thousands apart, an em dash where there is none."""
    if value is None or not math.isfinite(value):
        return "—"
    return f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "\N{MINUS SIGN}")


def p_value(p: float) -> str:
    """A p value to three digits."""
    return "< 0.001" if p < 0.001 else number(p)
