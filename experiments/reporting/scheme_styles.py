"""One colour, marker and line style for each scheme, by its name, in every figure of the project.

A pair of colour and marker belongs to one scheme only, and any two colours stay apart for
colour-blind readers (tests/reporting/test_scheme_styles.py simulates them). A scheme with settings
keeps its colour; marker and dashes are chosen by the text of the settings. An unknown name gets a
style chosen by its text: the same in every figure, whatever else is compared.
"""

import hashlib
import re
from typing import NamedTuple

# On white, and on the page's dark background.
PALETTE = (
    *(("#c67a0e", "#b97000"), ("#6184f9", "#5b6ddd"), ("#1f6f5a", "#5f7e6f")),
    *(("#4e248c", "#cec6f5"), ("#274055", "#37a9ef"), ("#6b580d", "#dfce4c")),
    *(("#b47a9e", "#e593b0"), ("#2f9e5a", "#97dd97"), ("#b94bb0", "#af55a6")),
    ("#632e21", "#e77559"),
)
MARKERS = "os^DvP<X>"
DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))

# The index gives the style: new names go to the end, so that no other changes. Two rows have every
# colour once: the first two are what `make compare` draws.
KNOWN = (
    *("rope", "t5", "alibi", "buckets", "nope"),
    *("sinusoidal", "learned", "shaw", "transformer_xl", "deberta"),
    *("temperature", "wavlm", "sandwich", "xpos", "cope"),
    *("fire", "kerple", "clipped", "tupe", "fox"),
    *("dape", "linear", "ntk", "dynamic_ntk", "yarn"),
    *("llama3", "longrope", "rerope", "self_extend", "cable"),
    *("bipe", "rope_2d", "swin", "alibi_2d", "sinusoidal_2d"),
    *("learned_2d", "cpb", "mrope", "layoutlmv3", "proportional"),
    *("pope", "lerope", "log_length", "selective_rope", "wall", "clipped_rope"),
    *("inkling", "sink", "grape_ap", "path", "stick_breaking", "dual_chunk"),
    *("rope_mixed", "rotated_values", "riflex", "dpb", "fope", "cayley_string"),
    "liere",
)


class Style(NamedTuple):
    """How a scheme is drawn: `colour` is an index into PALETTE, `dashes` are matplotlib's."""

    colour: int
    marker: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"


def style(name: str, spec: str = "") -> Style:
    """The style of a scheme with this name and config string."""
    if name in KNOWN:
        index = KNOWN.index(name)
        return Style(*_pair(index))
    text = _scaling(spec or name)
    digest = int.from_bytes(hashlib.sha256(f"{name} {text}".encode()).digest()[:8], "big")
    dashes = DASHES[digest % len(DASHES)]
    for words in (name, text):
        base = re.match(r"(\w+)(?=[ (@]|, )", words)
        if base and base[1] in KNOWN and not re.search(r"\)[+,*]", words):
            colour, marker = _pair(KNOWN.index(base[1]))
            markers = MARKERS.replace(marker, "")
            return Style(colour, markers[digest // 3 % len(markers)], dashes)
    free = len(PALETTE) * len(MARKERS) - len(KNOWN)
    return Style(*_pair(len(KNOWN) + digest // 3 % free), dashes)


def _pair(index: int) -> tuple[int, str]:
    """(colour, marker): different for each index below len(PALETTE) · len(MARKERS)."""
    turn, colour = divmod(index, len(PALETTE))
    return colour, MARKERS[(colour + 2 * turn) % len(MARKERS)]


def _scaling(spec: str) -> str:
    """The scaling of a rotation that has one: rope(scaling=yarn(factor=4.0)) → yarn(…)."""
    scaled = re.fullmatch(r"rope\(scaling=(\w+\(.*\))\)", spec)
    return scaled[1] if scaled else spec
