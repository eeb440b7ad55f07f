"""The rows of docs/cookbook.md: families of models, their keys of positions, traps.

Spec, what else the scores need and the weights are not written here but asked of `pe_jax.hf`; the
live tests (`pytest -m oracles`) build each row's model and ask it, too.
"""

from tools.cookbook_rows.decoders import DECODERS
from tools.cookbook_rows.encoders import ENCODERS
from tools.cookbook_rows.images import IMAGES
from tools.cookbook_rows.inputs import INPUT
from tools.cookbook_rows.row import CHECKS, LOGITS, Row
from tools.cookbook_rows.scores import SCORES

__all__ = ["CHECKS", "GROUPS", "LOGITS", "ROWS", "Row"]

GROUPS = {
    "Decoders that rotate": DECODERS,
    "Encoders that rotate": ENCODERS,
    "Images that rotate": IMAGES,
    "Positions in the scores": SCORES,
    "Positions at the input": INPUT,
}
ROWS = tuple(row for rows in GROUPS.values() for row in rows)
