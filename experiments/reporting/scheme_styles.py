"""One colour, marker and line style for each scheme, by its name, in every figure of the project.

A pair of colour and marker belongs to one scheme only, and any two colours stay apart for
colour-blind readers (tests/reporting/test_scheme_styles.py simulates them). A scheme with settings
keeps its colour; its marker and dashes are chosen by the text of the settings. An unknown name gets
a style chosen by its text; in one comparison no two are alike.
"""

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

# On white, and on the page's dark background.
PALETTE = (
    *(("#c67a0e", "#b97000"), ("#6184f9", "#5b6ddd"), ("#1f6f5a", "#5f7e6f")),
    *(("#4e248c", "#cec6f5"), ("#274055", "#37a9ef"), ("#6b580d", "#dfce4c")),
    *(("#b47a9e", "#e593b0"), ("#2f9e5a", "#97dd97"), ("#b94bb0", "#af55a6")),
    *(("#632e21", "#e77559"), ("#611efd", "#821afd"), ("#dc463c", "#c6004b")),
)
MARKERS = "os^DvP<X>"
DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (12, 3)))

# A row shares a colour, so its schemes should rarely be compared; a name's place in it gives its
# marker: new names go to the end of a row. `make compare` draws the first of the first ten.
# RoPE's row is short: what remains of it is for RoPE with settings.
ROWS = (
    ("rope", "rope_2d", "rope+log_length"),
    ("t5", "linear", "swin", "lerope", "xpos", "stick_breaking", "rope_pp"),
    ("alibi", "ntk", "alibi_2d", "sandwich", "log_length", "key_offset"),
    ("buckets", "rope,nope", "cpb", "wall", "dynamic_ntk", "temperature"),
    ("nope", "cable", "dape", "cayley_string", "learned_grid", "rope_heads", "repo"),
    (
        *("sinusoidal", "llama3", "sinusoidal_2d", "selective_rope"),
        *("Llama 4 with windows", "riflex", "tupe"),
    ),
    ("learned", "longrope", "learned_2d", "kerple", "SmolLM3", "fope"),
    ("shaw", "rerope", "wavlm", "rope+sink", "dpb", "modded-nanogpt", "rayrope"),
    (
        *("transformer_xl", "self_extend", "grape_ap", "rotated_values"),
        *("gpt-oss", "layoutlmv3", "prope"),
    ),
    ("deberta", "clipped_rope", "fox", "proportional", "liere", "sink"),
    ("cope", "RNoPE-SWA", "yarn", "inkling", "clipped", "bipe", "rope_nd", "rope_inner"),
    ("pope", "dual_chunk", "fire", "path", "Gemma 3", "mrope", "rope_mixed", "tapa"),
)


class Style(NamedTuple):
    """How a scheme is drawn: `colour` is an index into PALETTE, `dashes` are matplotlib's."""

    colour: int
    marker: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"


PAIRS = [
    (colour, MARKERS[(colour + 2 * place) % len(MARKERS)])
    for place, colour in itertools.product(range(len(MARKERS)), range(len(PALETTE)))
]
KNOWN = {
    name: Style(*PAIRS[place * len(PALETTE) + colour], DASHES[0] if "+" in name else "-")
    for colour, row in enumerate(ROWS)
    for place, name in enumerate(row)
}
KNOWN_PAIRS = {style[:2] for style in KNOWN.values()}


def style(name: str, spec: str = "") -> Style:
    """The style of a scheme with this name and config string, wherever nothing else has it."""
    return styles([(name, spec)])[0]


def styles(schemes: Sequence[tuple[str, str]]) -> list[Style]:
    """The styles of the schemes of one comparison, by name and config string.

    Known names have theirs. Each other takes what its text chooses among what neither they nor
    those before it have: settings the scheme's colour with another marker, an unknown name another
    colour, as long as there are any; then that of the scheme its name begins with.
    """
    chosen = {name: KNOWN[name] for name, _ in schemes if name in KNOWN}
    for name, spec in schemes:
        if name not in chosen:
            chosen[name] = _unlike(name, spec, [*chosen.values()])
    return [chosen[name] for name, _ in schemes]


def _unlike(name: str, spec: str, others: Sequence[Style]) -> Style:
    """The style of a name that is not in KNOWN, beside these."""
    text = _scaling(spec or name)
    digest = int.from_bytes(hashlib.sha256(f"{name} {text}".encode()).digest()[:8], "big")
    base, colours = _base(name, text), {style.colour for style in others}
    if base is None and len(colours) == len(PALETTE):  # none is left: that of its first scheme
        first = KNOWN.get(re.split(r"\W", name)[0])
        base = first and first.colour

    def order(pair: tuple[int, str]) -> tuple[bool, bool]:
        is_taken = any(pair == style[:2] for style in others)
        return is_taken, pair[0] in colours if base is None else pair[0] != base

    free = [pair for pair in PAIRS if pair not in KNOWN_PAIRS]
    colour, marker = min(_rotated(free, digest // len(DASHES)), key=order)
    drawn = {style.dashes for style in others if style.colour == colour}
    return Style(colour, marker, min(_rotated(DASHES, digest), key=drawn.__contains__))


def _rotated(items: Sequence, start: int) -> list:
    """The items from that one on, counted from 0 and around; then those before it."""
    start %= len(items)
    return [*items[start:], *items[:start]]


def _base(name: str, text: str) -> int | None:
    """The colour of the known scheme of which this is one with settings, or None."""
    for words in (name, text):
        base = re.match(r"(\w+)(?=[ (@]|, )", words)
        while (plain := re.sub(r"\([^()]*\)", "", words)) != words:
            words = plain
        if base and base[1] in KNOWN and not re.search(r"[+*]|,\S", words):
            return KNOWN[base[1]].colour
    return None


def _scaling(spec: str) -> str:
    """The scaling of a rotation that has one: rope(scaling=yarn(factor=4.0)) → yarn(…)."""
    scaled = re.fullmatch(r"rope\(scaling=(\w+\(.*\))\)", spec)
    return scaled[1] if scaled else spec
