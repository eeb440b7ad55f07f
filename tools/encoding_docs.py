"""docs/encodings.md, its pictures and the table of kernels of docs/engines.md, from the code.

`python -m tools.encoding_docs` writes all. All text about a scheme comes from its docstrings, its
tests and its declarations (`tools.scheme_facts`).
"""

import argparse
import inspect
import itertools
import re
import textwrap
import urllib.parse

from experiments.reporting.comparison import scheme_pictures
from experiments.running.command.help_text import signature
from pe_jax import ENCODINGS, Encoding
from pe_jax.encodings.rope_scaling import SCALINGS
from tools import scheme_facts as facts

PAGE = facts.ROOT / "docs" / "encodings.md"
ENGINES = facts.ROOT / "docs" / "engines.md"
NAIVE = "../tests/test_naive.py"  # seen from the page
KERNELS = re.compile(r"(?<=<!-- kernels: begin -->\n).*?(?=<!-- kernels: end -->)", re.DOTALL)
PLATFORMS, LENGTHS = ("gpu", "tpu"), (2048, 4096)  # of the table of kernels
FIGURES = facts.ROOT / "docs" / "figures" / "encodings"
HEAD = ("scheme", "source", "enters at", "functions", "parameters", "beyond training", "engines")
HEAD += ("oracle",)
# Oracles that are not models of transformers.
PACKAGES = {
    "torch": "PyTorch",
    "attn_gym": "attention-gym",
    "fla": "fla-core",
    "pope_pytorch": "PoPE-pytorch",
    "timm": "timm",
    "x_transformers": "x-transformers",
}

INTRO = """\
# The encodings, one by one

*Written by `python -m tools.encoding_docs` from the docstrings, tests and declarations of schemes.*

The table compares all schemes. *Functions*: which of `encoding.embed`, `pe_jax.rotate` and
`pe_jax.bias` give all of it to an attention of your own; – if only `pe_jax.attention` has it.
*Parameters*: of the model + of each layer, for width 512 and 8 heads of 64. *Beyond training*: at
positions or distances not seen in training, by construction. *Oracle*: the model in Hugging Face
transformers, or the library, that the scheme is tested against.
"""

COMBINE = """\
Schemes combine: `t5+rope` is a sum, `rope*3,nope` a pattern over layers, `rope(base=5e5)` sets a
field. Gemma 3's two bases are `rope(base=1e4)*5,rope(base=1e6)`. `rope@window=512*3,nope` gives
three layers of four a window, `@chunk=512` chunks that see no other: Llama 4's layers are
`rope(layout='interleaved')@chunk=8192*3,temperature`. For longer contexts RoPE takes a
[scaling](#scalings-of-rope): `rope(scaling=yarn(factor=4, original_length=2048))`;
`rope_scaling.from_hf` reads the settings of a Hugging Face config. Rotations of several axes
take one for all, or one for each: `rope_nd(scaling=(linear(factor=2), None, None))`.

`gated_delta(decay=channel)*3,nope` has three recurrent layers for each of attention, as Kimi
Linear; `gated_delta*3,rope` is Qwen3-Next's pattern. A layer of the
[gated delta rule](../pe_jax/encodings/gated_delta.py) stands in the place of attention in a
Transformer: the order of tokens is in its state, and it reads no positions. Documents and padding
are kept apart as in attention, and a cache holds its state [B, H, E, E], whatever the length. With
heads that fill the width D it has 5·D² + 2·D·H weights and about 12·D more, attention 4·D². A
window, a sum with an encoding, `mesh.seq` and functions of attention are refused for it.

Each section has the equation, pictures of what the scheme adds to the scores, traps (where the
paper, its released code and this one differ), what it is tested against, and the import line.
Everywhere `distance = q_pos - k_pos`: positive looks back. Shapes of parameters are in letters (D
width, H heads, E head width). [WORKSPACE.md](../WORKSPACE.md) says how to add a scheme.

**How to read the pictures.** They are measured: `attention` ran with the scheme and without any,
and the difference of the scores before softmax is drawn. Left, all tokens are the same, so that
only position matters: what is added to the score of the last query and a key at each distance, one
line for each of four heads. The axis is logarithmic unless the scheme is constant from a distance
of 64 or less on. For schemes of two or three axes it shows what is added to the scores of the patch
in the middle of an image with all others, mean of the heads. Right, tokens are random: what is
added to the score of each query and key, mean of the heads (for images, 7 × 7 patches in a row).
Parameters have their initial values, or random ones if those are zero: a learned scheme is noise
before training, and its picture shows where that noise is shared. What a scheme does to values
(Shaw, `rotated_values`) does not show in scores.
"""

# The table


def _arxiv(number: str) -> str:
    return f"[{number}](https://arxiv.org/abs/{number})"


def _source(kind: type[Encoding]) -> str:
    """The first paper, or page, in the docstrings, with its link; — without either."""
    lines = (kind.__doc__ or "") + (inspect.getdoc(inspect.getmodule(kind)) or "")
    first = re.search(r"https://[^\s),]+|\b\d{4}\.\d{5}\b", lines)
    if first is None:
        return "—"
    source = first[0].rstrip(".")
    host = urllib.parse.urlsplit(source).netloc
    return f"[{host}]({source})" if host else _arxiv(source)


def row(name: str, kind: type[Encoding]) -> list[str]:
    """One line of the table."""
    scheme = kind()
    model, layer = facts.sizes(scheme)
    some = [engine for engine in facts.engines(name) if engine not in facts.common_engines()]
    compared = facts.oracles().get(name, [])
    libraries = list(dict.fromkeys(library for library, _ in compared)) or ["NumPy"]
    oracle = PACKAGES.get(libraries[0], libraries[0])
    return [
        f"[`{name}`](#{name})",
        _source(kind),
        facts.enters(scheme),
        facts.functions(scheme),
        f"{model:,} + {layer:,}",
        facts.beyond(scheme),
        ", ".join(some) or "–",
        oracle + f" +{len(libraries) - 1}" * (len(libraries) > 1),
    ]


def table() -> str:
    """The table in Markdown, and the engines that run every scheme."""
    rows = [HEAD, ["---"] * len(HEAD), *(row(n, k) for n, k in ENCODINGS.items())]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    common = "` and `".join(facts.common_engines())
    note = f"\nAll {len(ENCODINGS)} run `{common}`; *engines* has the others."
    return "\n".join([*lines, note])


# The sections


def _prose(text: str) -> str:
    """Text of a docstring in Markdown: arXiv numbers become links."""
    pieces = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(pieces), 2):
        plain = re.sub(r"([*_\[\]|])", r"\\\1", pieces[i]).replace("<", "&lt;")
        pieces[i] = re.sub(r"\b(\d{4}\.\d{5})\b", lambda m: _arxiv(m[1]), plain)
    return "".join(pieces)


def _docstring(thing) -> tuple[str, list[str]]:
    """(the first line, the rest in Markdown): indented lines are code, the others prose."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n")
    blocks: list[str] = []
    for lines in re.findall(r"(?:^ {4}.*\n?|^\n(?= {4}))+|(?:^(?! {4}).*\n?)+", rest + "\n", re.M):
        code = lines.lstrip("\n").startswith("    ")
        text = textwrap.dedent(lines.strip("\n")).rstrip()
        if text.strip():
            blocks.append(f"```text\n{text}\n```" if code else _prose(text.strip("\n")))
    return first, blocks


def borrowed(kind: type[Encoding]) -> str:
    """The import line of the scheme's module, with what is in it."""
    module = inspect.getmodule(kind)
    assert module is not None
    name = module.__name__.rpartition(".")[2]
    free = [
        f
        for f, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
        # functions that return values; the others only check
        if not f.startswith("_") and value.__annotations__.get("return") not in (None, bool)
        if kind is not Encoding  # its module also has helpers for all schemes
    ]
    used = ", ".join(f"{name}.{f}" for f in [*free, kind.__name__])
    return f"from pe_jax.encodings import {name}  # {used}"


def _tested(name: str) -> str:
    """The oracles, and the claims of the tests, folded."""
    compared = [
        f"`{what}` ({PACKAGES.get(library, f'transformers, {library}')})"
        for library, what in facts.oracles().get(name, [])
    ]
    also = f", and {', '.join(compared)}" if compared else ""
    first = f"**Tested against** the paper in float64 NumPy ([test_naive.py]({NAIVE})){also}"
    path = facts.tests(name)
    if path is None:
        return f"{first}."
    sentences, file = facts.claims(path), path.relative_to(facts.ROOT).as_posix()
    count = f"{len(sentences)} tests claim" if len(sentences) > 1 else "test claims"
    lines = [
        f"{first}; what is specific to it is in [{path.name}](../{file}).",
        "",
        f"<details><summary>What its {count}</summary>",
        "",
        *(f"- {claim}" for claim in sentences),
        "",
        "</details>",
    ]
    return "\n".join(lines)


def section(name: str, kind: type[Encoding]) -> str:
    """The section of one scheme."""
    title, blocks = _docstring(inspect.getmodule(kind))
    what = inspect.getdoc(kind) or ""
    drawn = scheme_pictures.DRAWN.get(name, name)
    alt = f"What {name} adds to the scores"
    model, layer = facts.sizes(kind())
    params = [f"`{leaf}` {shape}" for leaf, shape in facts.parameters(kind())]
    parts = [
        f"## {name}",
        _prose(what),
        f"*{_prose(title)}*",
        f"![{alt}](figures/encodings/{name}.png)",
        *([f"Drawn as `{drawn}`, to show within few tokens."] if drawn != name else []),
        *blocks,
        " · ".join(
            f"**{title}** {text}"
            for title, text in {
                "Enters at": facts.enters(kind()),
                "functions": facts.functions(kind()),
                "parameters": f"{model:,} + {layer:,}",
                "beyond training": facts.beyond(kind()),
                "runs": ", ".join(facts.engines(name)),
            }.items()
        ),
        *([f"**In `Params`** {', '.join(params)}."] if params else []),
        _tested(name),
        f"```python\n{borrowed(kind)}\n```",
        f"In a config, or for `pe_jax.parse`: `{signature(name, kind)}`",
    ]
    return "\n\n".join(parts)


def _scalings() -> str:
    parts = ["## Scalings of rope"]
    modules = dict.fromkeys(inspect.getmodule(kind) for kind in SCALINGS.values())
    for module in modules:
        title, blocks = _docstring(module)
        parts += [f"*{_prose(title)}*", *blocks]
    lines = []
    for name, kind in SCALINGS.items():
        call = signature(name, kind)
        first = _prose((inspect.getdoc(kind) or "").partition("\n")[0])
        lines.append(f"- `{call}`: {first}")
    return "\n\n".join([*parts, "\n".join(lines)])


def page() -> str:
    """The text of docs/encodings.md."""
    sections = [section(name, kind) for name, kind in ENCODINGS.items()]
    return "\n\n".join([INTRO.strip(), table(), COMBINE.strip(), *sections, _scalings()]) + "\n"


def engines_page() -> str:
    """The text of docs/engines.md, with the table of the schemes that each kernel runs."""
    columns = list(itertools.product(PLATFORMS, LENGTHS))
    by_engines: dict[tuple[str, ...], list[str]] = {}
    for name in ENCODINGS:
        engines = tuple(facts.chosen(name, *column) for column in columns)
        by_engines.setdefault(engines, []).append(name)
    titles = [f"{platform.upper()}, {length:,} tokens" for platform, length in columns]
    lines = [(*titles, "schemes"), ("---",) * (len(titles) + 1)]
    lines += [(*engines, ", ".join(names)) for engines, names in by_engines.items()]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return KERNELS.sub(table, ENGINES.read_text(encoding="utf-8"))


def main() -> None:
    """Writes the pages and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text-only", action="store_true", help="do not draw the pictures")
    options = parser.parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    ENGINES.write_text(engines_page(), encoding="utf-8")
    if options.text_only:
        return
    for name in ENCODINGS:
        scheme_pictures.draw(name, FIGURES)
    for path in {*FIGURES.glob("*.png")} - {FIGURES / f"{name}.png" for name in ENCODINGS}:
        path.unlink()


if __name__ == "__main__":
    main()
