"""The table of schemes in README.md, from the code.

`python -m experiments.schemes` writes it there.
"""

import inspect
import re
from pathlib import Path

import jax

from pe_jax.encodings import ENCODINGS
from pe_jax.encodings.base import DISTANCE_SLOTS, Dims, Encoding

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- schemes: begin -->", "<!-- schemes: end -->"
ENTERS = {
    "embed": "input",
    "rotate_q": "queries",
    "rotate_k": "keys",
    "bias": "bias",
    "distance_bias": "bias",
    "relative_keys": "q · position",
    "relative_queries": "k · position",
    "relative_values": "values",
    "relative_state": "bias, gated by the input",
    "state_bias": "bias from the input",
    "rescore": "whole rows of scores",
}
DIMS = Dims(width=512, heads=8, kv_heads=8, head_dim=64)


def _size(init) -> int:
    shapes = jax.eval_shape(lambda key: init(key, DIMS), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def _beyond(scheme: Encoding) -> str:
    """What the scheme's own declarations say of distances it was not trained on."""
    if scheme.limit() is not None:
        return f"not defined from {scheme.limit()}"
    if any(map(scheme.overrides, DISTANCE_SLOTS)) and scheme.horizon() is not None:
        return f"constant from {scheme.horizon()[1]}"
    return "decays" if scheme.decays else "defined everywhere"


def row(name: str, kind: type[Encoding]) -> list[str]:
    """One line of the table."""
    scheme = kind()
    lines = (kind.__doc__ or "") + (inspect.getdoc(inspect.getmodule(kind)) or "")
    paper = re.findall(r"\b(\d{4}\.\d{5})\b", lines)[0]
    enters = dict.fromkeys(where for slot, where in ENTERS.items() if scheme.overrides(slot))
    return [
        f"`{name}`",
        f"[{paper}](https://arxiv.org/abs/{paper})",
        ", ".join(enters) or "nowhere",
        f"{_size(scheme.init_shared):,} + {_size(scheme.init_layer):,}",
        _beyond(scheme),
    ]


def table() -> str:
    """The table in Markdown."""
    head = ["scheme", "arXiv", "enters at", "parameters: model + layer", "far distances"]
    rows = [head, ["---"] * len(head), *(row(n, k) for n, k in ENCODINGS.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def insert(text: str) -> str:
    """The text with the table between its two marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(insert(README.read_text()))
