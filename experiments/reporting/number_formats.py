"""Numbers as text."""

import math


def number(value: float | None, digits: int = 3, signed: bool = False) -> str:
    """A number with −, thousands separators, and — for None and what is not finite."""
    if value is None or not math.isfinite(value):
        return "—"
    return f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "\N{MINUS SIGN}")


def p_value(p: float) -> str:
    """A p value to three digits."""
    return "< 0.001" if p < 0.001 else number(p)


def p_equation(p: float) -> str:
    """The same as an equation, "p = 0.012", or "p < 0.001"."""
    value = p_value(p)
    return f"p {value}" if value.startswith("<") else f"p = {value}"
