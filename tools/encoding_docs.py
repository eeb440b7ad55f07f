"""docs/encodings.md, its pictures and the guide's table of kernels, from the code.

`python -m tools.encoding_docs` writes all. All text about a scheme comes from its docstrings, its
tests and its declarations; nothing is listed by hand. Engines are tried on an abstract call; tests
and oracles are parsed with `ast`, so that neither pytest nor PyTorch is needed.
"""

import argparse
import ast
import functools
import inspect
import itertools
import re
import textwrap
import urllib.parse
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import pe_jax
from experiments.reporting import scheme_pictures
from experiments.running.help_text import signature
from pe_jax import ENCODINGS, Dims, Encoding, Params
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import abstract_terms, adds_to_input
from pe_jax.encodings.rope_scaling import SCALINGS
from pe_jax.engines import dispatch
from pe_jax.engines.decoding import cache
from pe_jax.engines.kernels.gpu import engine as gpu
from pe_jax.engines.kernels.tpu import engine as tpu
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.validation import ConfigError

ROOT = Path(__file__).parents[1]
DIMS = Dims(width=512, heads=8, kv_heads=8, head_dim=64)
TOKENS = 4096  # of the abstract call
ENTERS = {  # kind of term → where positions come in
    kinds.QueryBias: "queries",
    kinds.ChannelDecay: "channels of q · k",
    kinds.DistanceFormula: "bias",
    kinds.DistanceBias: "bias",
    kinds.PairBias: "bias",
    kinds.TokenProduct: "bias",
    kinds.RelativeKeys: "q · position",
    kinds.RelativeQueries: "k · position",
    kinds.RelativeValues: "values",
    kinds.ValueRotation: "values",
    kinds.RelativeState: "bias, gated by the input",
    kinds.TokenBias: "bias from the input",
    kinds.PathProduct: "q · key, through all tokens between",
    kinds.RowSum: "sums along the row",
    kinds.RowRescore: "scores of all heads",
    kinds.Unnormalized: "no softmax",
    kinds.Sink: "the softmax's sum",
}
PAGE = ROOT / "docs" / "encodings.md"
GUIDE = ROOT / "docs" / "guide.md"
KERNELS = re.compile(r"(?<=<!-- kernels: begin -->\n).*?(?=<!-- kernels: end -->)", re.DOTALL)
PLATFORMS, LENGTHS = ("gpu", "tpu"), (2048, 4096)  # of the guide's table of kernels
FIGURES = ROOT / "docs" / "figures" / "encodings"
HEAD = ("scheme", "source", "enters at", "parameters", "beyond training", "engines", "oracle")
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

The table compares all schemes. *Parameters*: of the model + of each layer, for width 512 and 8
heads of 64. *Beyond training*: at positions or distances not seen in training, by construction.
*Oracle*: the model in Hugging Face transformers, or the library, that the scheme is tested against.
"""

COMBINE = """\
Schemes combine: `t5+rope` is a sum, `rope*3,nope` a pattern over layers, `rope(base=5e5)` sets a
field. Gemma 3's two bases are `rope(base=1e4)*5,rope(base=1e6)`, Llama 4's layers
`rope(layout='interleaved')*3,temperature`. `rope@window=512*3,nope` gives three layers of four a
window. For longer contexts RoPE takes a [scaling](#scalings-of-rope): `rope(scaling=yarn(factor=4,
original_length=2048))`; `rope_scaling.from_hf` reads the settings of a Hugging Face config.

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

# Facts of a scheme.


def enters(scheme: Encoding) -> str:
    """Where positions enter attention."""
    entries = ["input"] if adds_to_input(scheme, DIMS) else []
    for term in abstract_terms(scheme, DIMS):
        if isinstance(term, kinds.Rotation):
            entries += ["queries"] * (term.q is not None) + ["keys"] * (term.k is not None)
        elif type(term) in ENTERS:
            entries.append(ENTERS[type(term)])
    return ", ".join(dict.fromkeys(entries)) or "nowhere"


def sizes(scheme: Encoding) -> tuple[int, int]:
    """Numbers of parameters for `DIMS`: of the model, and of each layer."""

    def count(init) -> int:
        shapes = jax.eval_shape(lambda key: init(key, DIMS), jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(shapes))

    return count(scheme.init_shared), count(scheme.init_layer)


def parameters(scheme: Encoding) -> list[tuple[str, str]]:
    """Names and shapes: `shared["table"]` and [H, 32]; sizes of the model by their letters."""
    # sizes that no scheme sets, each of one letter only; F of FoPE is the number of its frequencies
    letters = {1008: "D", 504: "D/2", 252: "D/4", 11: "H", 22: "2H"}
    letters |= {152: "E", 76: "E/2", 19: "E/8", 37: "F"}
    dims = Dims(1008, 11, 11, 152)
    shapes = jax.eval_shape(lambda key: scheme.init(key, dims), jax.random.key(0))
    return [
        (
            jax.tree_util.keystr(path).lstrip(".").replace("'", '"'),
            f"[{', '.join(letters.get(n, str(n)) for n in leaf.shape)}]",
        )
        for path, leaf in jax.tree.leaves_with_path(shapes)
    ]


def beyond(scheme: Encoding) -> str:
    """What the scheme declares about distances beyond those of training."""
    if scheme.limit() is not None:
        return f"not defined from {scheme.limit():,}"
    terms = abstract_terms(scheme, DIMS)
    horizons = [term.horizon for term in kinds.select(terms, kinds.DistanceTerm)]
    if horizons and None not in horizons:
        return f"constant from {max(high for _, high in horizons):,}"
    if (views := kinds.views(terms)) is not None:
        blocks = views.unit > 1
        return f"chunks of {views.unit:,}" if blocks else f"second view from {views.edges[0]:,}"
    fading = kinds.DistanceFormula, kinds.TokenBias, kinds.RowSum
    decays = any(term.decays for term in kinds.select(terms, *fading))
    return "decays" if decays else "defined"


# Engines.


def _call(scheme: Encoding, queries: int) -> tuple[Params, dict[str, Any]]:
    """Abstract parameters and operands of a causal call in bfloat16; contiguous for one axis."""
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    heads = shape((1, queries, DIMS.heads, DIMS.head_dim))
    operands = dict.fromkeys(("q", "k", "v"), heads) | {"x": shape((1, queries, DIMS.width))}
    if scheme.claims.axes > 1:
        operands["positions"] = jax.ShapeDtypeStruct((1, queries, scheme.claims.axes), jnp.int32)
    return jax.eval_shape(lambda: scheme.init(jax.random.key(0), DIMS)), operands


def _attention(scheme: Encoding, implementation: Any, tokens: int = TOKENS) -> None:
    """Traces a call. Raises ValueError if the engine cannot run it."""
    params, operands = _call(scheme, tokens)
    options: Any = {"causal": True, "embedded": True, "implementation": implementation}

    def run(params, q, k, v, x, positions=None):
        arguments = {"encoding": scheme, "params": params, "x": x, "q_positions": positions}
        return pe_jax.attention(q, k, v, **arguments, **options)

    jax.eval_shape(run, params, **operands)


def _kernel(engine):
    """An engine that only checks whether a kernel would run the call."""

    def ask(*call):
        why = engine.refusal(*call)
        if why is not None:
            raise ConfigError(why)
        return call[-1], call[-1][..., :1].astype(jnp.float32)

    return ask


def _decode(scheme: Encoding) -> None:
    """Traces decoding of one token. Raises ValueError if the scheme cannot be decoded."""
    params, operands = _call(scheme, 1)

    def run(params, q, k, v, x, positions=None):
        past = cache.empty(scheme, 1, TOKENS, DIMS)
        shared = {"encoding": scheme, "params": params, "dims": DIMS, "embedded": True}
        return cache.extend(past, q, k, v, positions, x=x, **shared)

    jax.eval_shape(run, params, **operands)


ENGINES = {
    "dense": functools.partial(_attention, implementation="dense"),
    "tiled": functools.partial(_attention, implementation="tiled"),
    "fused": functools.partial(_attention, implementation=_kernel(gpu)),
    "tpu": functools.partial(_attention, implementation=_kernel(tpu)),
    "decode": _decode,
}


@functools.cache
def engines(name: str) -> tuple[str, ...]:
    """The engines in `ENGINES` that run the scheme with its defaults."""
    names = []
    for engine, ask in ENGINES.items():
        try:
            ask(ENCODINGS[name]())
        except ValueError:
            continue
        names.append(engine)
    return tuple(names)


@functools.cache
def chosen(name: str, platform: str, tokens: int) -> str:
    """The engine that `attention` chooses for a scheme on one device of a platform."""
    modules: list[list[str]] = []

    def note(*call):
        engine = dispatch.engine(None, CONTIGUOUS, dispatch.Call(*call), name)
        modules.append(str(engine.__module__).split("."))
        return call[-1], call[-1][..., :1].astype(jnp.float32)

    with mock.patch.object(jax, "default_backend", return_value=platform):
        _attention(ENCODINGS[name](), note, tokens)
    *_, folder, file = modules[0]
    of_folder = {"gpu": "fused"}.get(folder, folder)
    return of_folder if file == "engine" else {"reference": "dense"}.get(file, file)


def common_engines() -> list[str]:
    """The engines that run every scheme."""
    return [e for e in ENGINES if all(e in engines(name) for name in ENCODINGS)]


# Tests and oracles.


def tests(name: str) -> Path:
    """The test file of the scheme, or else of its module.

    Raises:
      FileNotFoundError: there is neither.
    """
    module = ENCODINGS[name].__module__.rpartition(".")[2]
    files = [ROOT / "tests" / "encodings" / f"test_{stem}.py" for stem in (name, module)]
    present = [path for path in files if path.is_file()]
    if not present:
        raise FileNotFoundError(f"{name} has no tests: write {files[0].relative_to(ROOT)}")
    return present[0]


def claims(path: Path) -> list[str]:
    """The names of a file's tests as sentences."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    words = [n.removeprefix("test_").replace("_", " ") for n in names if n.startswith("test_")]
    return [text[0].upper() + text[1:] for text in words]


def case_of(case: str) -> str:
    """The scheme of a case in tests/oracles."""
    return max((n for n in ENCODINGS if f"{case}_".startswith(f"{n}_")), key=len)


def _names(function: ast.FunctionDef, sources: dict[str, str]) -> list[tuple[str, str]]:
    """(library, name in that library) in the order of the source."""
    uses = []
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=base), attr=attr) if base.startswith("modeling_"):
                uses.append((node.lineno, node.col_offset, base.removeprefix("modeling_"), attr))
            case ast.Attribute(value=ast.Attribute(attr="functional"), attr=attr):
                uses.append((node.lineno, node.col_offset, "torch", attr))
            case ast.Name(id=base) if base.isupper() and base in sources:
                uses.append((node.lineno, node.col_offset, "transformers", base))
    return [(library, attr) for *_, library, attr in sorted(uses)]


@functools.cache
def oracles() -> dict[str, list[tuple[str, str]]]:
    """Scheme → the code that it is compared with: (model or library, class or function).

    For each case the first name that its function takes from a library; a case without one compares
    with PyTorch's indexing.
    """
    folder = ROOT / "tests" / "oracles" / "live"
    files = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    body = [node for text in files for node in ast.parse(text).body]
    imports = [(n, n.module or "") for n in body if isinstance(n, ast.ImportFrom)]
    sources = {a.asname or a.name: m for n, m in imports for a in n.names if m[:6] != "tests."}
    functions = {f.name: f for f in body if isinstance(f, ast.FunctionDef)}
    cases: Any = next(
        n.value
        for n in body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "ORACLES"
    )
    by_scheme: dict[str, list[tuple[str, str]]] = {name: [] for name in ENCODINGS}
    for key, value in zip(cases.keys, cases.values, strict=True):
        used = _names(functions[value.id], sources) or [("torch", "indexing")]
        compared = by_scheme[case_of(key.value)]
        compared += [used[0]] if used[0] not in compared else []
    return by_scheme


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
    model, layer = sizes(scheme)
    some = [engine for engine in engines(name) if engine not in common_engines()]
    libraries = list(dict.fromkeys(library for library, _ in oracles().get(name, []))) or ["NumPy"]
    oracle = PACKAGES.get(libraries[0], libraries[0])
    return [
        f"[`{name}`](#{name})",
        _source(kind),
        enters(scheme),
        f"{model:,} + {layer:,}",
        beyond(scheme),
        ", ".join(some) or "–",
        oracle + f" +{len(libraries) - 1}" * (len(libraries) > 1),
    ]


def table() -> str:
    """The table in Markdown, and the engines that run every scheme."""
    rows = [HEAD, ["---"] * len(HEAD), *(row(n, k) for n, k in ENCODINGS.items())]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    common = "` and `".join(common_engines())
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
    path = tests(name)
    file = path.relative_to(ROOT).as_posix()
    sentences = claims(path)
    compared = [
        f"`{what}` ({PACKAGES.get(library, f'transformers, {library}')})"
        for library, what in oracles().get(name, [])
    ]
    also = f", and {', '.join(compared)}" if compared else ""
    lines = [
        f"**Tested against** the paper in float64 NumPy ([{path.name}](../{file})){also}.",
        "",
        f"<details><summary>What its {len(sentences)} tests claim</summary>",
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
    model, layer = sizes(kind())
    params = [f"`{leaf}` {shape}" for leaf, shape in parameters(kind())]
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
                "Enters at": enters(kind()),
                "parameters": f"{model:,} + {layer:,}",
                "beyond training": beyond(kind()),
                "runs": ", ".join(engines(name)),
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


def guide() -> str:
    """The text of docs/guide.md, with the table of the schemes that each kernel runs."""
    columns = list(itertools.product(PLATFORMS, LENGTHS))
    by_engines: dict[tuple[str, ...], list[str]] = {}
    for name in ENCODINGS:
        engines = tuple(chosen(name, *column) for column in columns)
        by_engines.setdefault(engines, []).append(name)
    titles = [f"{platform.upper()}, {length:,} tokens" for platform, length in columns]
    lines = [(*titles, "schemes"), ("---",) * (len(titles) + 1)]
    lines += [(*engines, ", ".join(names)) for engines, names in by_engines.items()]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return KERNELS.sub(table, GUIDE.read_text(encoding="utf-8"))


def main() -> None:
    """Writes the pages and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text-only", action="store_true", help="do not draw the pictures")
    options = parser.parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    GUIDE.write_text(guide(), encoding="utf-8")
    if options.text_only:
        return
    for name in ENCODINGS:
        scheme_pictures.draw(name, FIGURES)
    for path in {*FIGURES.glob("*.png")} - {FIGURES / f"{name}.png" for name in ENCODINGS}:
        path.unlink()


if __name__ == "__main__":
    main()
