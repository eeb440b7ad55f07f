"""Facts of a scheme, read from the code: where it enters, sizes, engines, tests and oracles.

Nothing is listed by hand. Engines are tried on an abstract call; tests and oracles are parsed with
`ast`, so that neither pytest nor PyTorch is needed.
"""

import ast
import functools
import re
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import pe_jax
from pe_jax import ENCODINGS, Dims, Encoding, Params
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import abstract_terms, adds_to_input
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
    kinds.KeyOffset: "keys",
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
    kinds.PhaseProduct: "q · k, by a phase of q · k",
    kinds.PathProduct: "q · key, through all tokens between",
    kinds.RowSum: "sums along the row",
    kinds.PairRescore: "scores of all heads",
    kinds.Unnormalized: "no softmax",
    kinds.Sink: "the softmax's sum",
}


def enters(scheme: Encoding) -> str:
    """Where positions enter attention."""
    entries = ["input"] if adds_to_input(scheme, DIMS) else []
    for term in abstract_terms(scheme, DIMS):
        if isinstance(term, kinds.Rotation):
            entries += ["queries"] * (term.q is not None) + ["keys"] * (term.k is not None)
        elif type(term) in ENTERS:
            entries.append(ENTERS[type(term)])
    return ", ".join(dict.fromkeys(entries)) or "nowhere"


def functions(scheme: Encoding) -> str:
    """The functions that give all of the scheme to another attention; – if there are none."""
    parts = pe_jax.decompose(scheme)
    if parts.others:
        return "–"
    names = {"embed": parts.embedded, "rotate": bool(parts.rotated), "bias": parts.bias}
    return ", ".join(f"`{name}`" for name, used in names.items() if used) or "none needed"


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


def tests(name: str) -> Path | None:
    """The test file of the scheme, or else of its module; None if other tests have all of it."""
    module = ENCODINGS[name].__module__.rpartition(".")[2]
    files = [ROOT / "tests" / "encodings" / f"test_{stem}.py" for stem in (name, module)]
    return next((path for path in files if path.is_file()), None)


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
    files = sorted((ROOT / "tests" / "oracles" / "live").glob("*.py"))
    body = [node for x in files for node in ast.parse(x.read_text(encoding="utf-8")).body]
    imports = [(n, n.module or "") for n in body if isinstance(n, ast.ImportFrom)]
    sources = {a.asname or a.name: m for n, m in imports for a in n.names if m[:6] != "tests."}
    functions = {f.name: f for f in body if isinstance(f, ast.FunctionDef)}
    ours = (ROOT / "tests" / "oracles" / "replay" / "__init__.py").read_text(encoding="utf-8")
    assigned = (n for n in ast.parse(ours).body if isinstance(n, ast.Assign))
    (cases,) = (n.value for n in assigned if ast.unparse(n.targets[0]) == "OURS")
    by_scheme: dict[str, list[tuple[str, str]]] = {name: [] for name in ENCODINGS}
    for case, name in re.findall(r"'(\w+)': \w+\.(\w+)", ast.unparse(cases)):
        function = functions.get(case) or functions[name]  # scalings of RoPE share `rope_scaled`
        used = _names(function, sources) or [("torch", "indexing")]
        compared = by_scheme[case_of(case)]
        compared += [used[0]] if used[0] not in compared else []
    return by_scheme
