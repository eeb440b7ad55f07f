"""A kernel runs only after it has agreed with the dense engine on the device at hand.

Before kernels first run a kind of call on a kind of device, they compute a small case like it
(`small_case`), forward and every gradient, and so does the dense engine in float32: a second or
two. `disagreement` says what is wrong, and `dispatch` picks another engine.

What agreed is kept as a JSON file in `$PE_JAX_CACHE/kernels`, by default in `pe_jax/kernels` of
`$XDG_CACHE_HOME` or `~/.cache`. It counts for the same case on the same kind of device, with the
same versions of JAX, its plugin, Triton and the platform, the same flags of XLA, and the same
source of our engines. What disagreed or failed is not kept: another process tries again. Where
nothing can be written, every process checks by itself.
"""

import concurrent.futures
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms import Side
from pe_jax.engines import reference
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import small_case
from pe_jax.engines.kernels.small_case import SmallCase

PACKAGES = (  # whose versions a record is of
    *("jax", "jaxlib", "triton", "libtpu"),
    *(f"jax-cuda{n}-{part}" for n in (12, 13) for part in ("plugin", "pjrt")),
)
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# Of the largest number of each array. Kernels add in another order, approximate exp2, and round
# weights and gradients of scores to the dtype of q: the least bound is for float32.
LEAST_BOUND, BOUND_IN_EPS = 1e-3, 4
ROUNDING = 1e-3  # a gradient of a term that is smaller, beside its others, is taken for rounding
TERM = re.compile(r"the gradient of terms\.\d+")
_verdicts: dict[str, str | None] = {}  # by the keys of records, for as long as the process lives


def disagreement(
    kernels: Any, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> str | None:
    """Why kernels must not run a call, or None if they agreed on one like it.

    Only shapes of the call are read: it may be under any trace. Asked again for the same shapes,
    the answer is the same for as long as the process lives.

    Args:
      kernels: a module with `attend` and `sample_length`, both functions of a call.
      spec: of the call, as the rest.
      terms: what is added.
      q: the queries.
      k: the keys.
      v: the values.
    """
    leaves, structure = jax.tree.flatten((terms, q, k, v))
    shapes = tuple((np.shape(x), jnp.result_type(x)) for x in leaves)
    return _disagreement(kernels, spec, structure, shapes)


@functools.lru_cache(4096)
def _disagreement(kernels: Any, spec: AttentionSpec, structure: Any, shapes: tuple) -> str | None:
    device = _device()
    if device is None:
        return None
    call = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*x) for x in shapes])
    # A new thread has no trace, no mesh, and no other setting of the caller's context.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(_check, kernels, device, spec, *call).result()


def _device() -> Any:
    """The device to ask; None where programs are traced for one that is not there."""
    try:
        return jax.local_devices(backend=jax.default_backend())[0]
    except RuntimeError:
        return None


def _check(kernels: Any, device: Any, spec: AttentionSpec, *call: Any) -> str | None:
    """As `disagreement`, for abstract arrays, on a device."""
    try:
        with (
            jax.default_device(device),
            jax.transfer_guard("allow"),
            jax.default_matmul_precision("highest"),
        ):
            case = small_case.shrink(kernels.sample_length(spec, *call), spec, *call)
            record = Record(_about(kernels, device) | {"case": small_case.describe(case)})
            if record.key not in _verdicts:
                _verdicts[record.key] = None if record.exists() else _compare(kernels, case, record)
            said = _verdicts[record.key]
    except Exception as error:
        said = _failure(error)
    return said and f"on this {device.device_kind} {said}"


def _compare(kernels: Any, case: SmallCase, record: "Record") -> str | None:
    """What is wrong with the kernels in a case; what agrees is kept."""
    begin = time.monotonic()
    try:
        errors = differences(kernels.attend, small_case.draw(case))
    except Exception as error:  # a compiler, an allocator or a launch may raise anything
        return _failure(error)
    most = bound(case.q.x.dtype)
    if not (wrong := {name: x for name, x in errors.items() if not x <= most}):
        seconds, worst = time.monotonic() - begin, max(errors.values())
        text = "kernels agree with the dense engine within %.1g of the largest number (%.1f s)"
        logging.getLogger("pe_jax").info(text, worst, seconds)
        record.keep(errors)
        return None
    name, worst = max(wrong.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))
    return (
        f"it differs from the dense engine: {name} by {worst:.2g} of its largest number, of which"
        f" {most:.2g} may be rounding"
    )


def _failure(error: Exception) -> str:
    said = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …")
    return f"it failed when it was tried ({said})"


def bound(dtype: Any) -> float:
    """How far numbers may be off for rounding, as a fraction of the largest of their array."""
    return max(LEAST_BOUND, BOUND_IN_EPS * float(jnp.finfo(dtype).eps))


def differences(attend: Callable, case: SmallCase) -> dict[str, float]:
    """By array, how far output, row sums if they are read, and gradients are from the dense ones.

    The largest difference, as a fraction of the largest number; of the largest of all gradients of
    a term where this one is nothing but rounding, as of a bias that the softmax ignores. NaN where
    there is one.
    """
    exact = case._replace(v=case.v.astype(jnp.float32))
    for name in "qk":
        side = getattr(case, name)
        exact = exact._replace(**{name: side._replace(x=side.x.astype(jnp.float32))})
    got, want = _outcome(attend, case), _outcome(reference.attend, exact)
    together: dict[str, list] = {}
    for name, x in want.items():
        together.setdefault(_group(name), []).append(x)
    return {name: relative_error(got[name], x, *together[_group(name)]) for name, x in want.items()}


def _group(name: str) -> str:
    """An array's name, or that of the term whose gradients it is one of."""
    term = TERM.match(name)
    return name if term is None else term.group()


def relative_error(got: Any, want: Any, *whole: Any) -> float:
    """The largest difference ÷ the largest number wanted, or of `whole` if that is far larger."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    wanted, largest = (
        max(float(np.abs(np.asarray(x)).max(initial=0)) for x in arrays)
        for arrays in ((want,), (want, *whole))
    )
    largest = largest if wanted < ROUNDING * largest else wanted
    return float(np.abs(got - want).max(initial=0)) / (largest or 1)


def _outcome(attend: Callable, case: SmallCase) -> dict[str, jax.Array]:
    """Output, row sums and gradients by name, for the same cotangents whatever the dtype."""
    spec, terms, q, k, v = case
    numbers = {"q": q.x, "k": k.x, "v": v, "terms": terms, "states": (q.states, k.states)}
    numbers["unrotated"] = q.raw, k.raw

    @jax.jit
    def run(numbers, tokens):
        def forward(numbers):
            of_q, of_k = (
                Side(numbers[name], raw, states, known)
                for name, raw, states, known in zip(
                    "qk", numbers["unrotated"], numbers["states"], tokens, strict=True
                )
            )
            out, lse = attend(spec, numbers["terms"], of_q, of_k, numbers["v"])
            sums = jnp.where(lse > reference.LOWEST / 2, lse, 0) if spec.lse else None
            return {"the output": out, "row sums": sums}

        results, pull = jax.vjp(forward, numbers)
        return results, pull(jax.tree.map(cotangent, results))[0]

    results, gradients = run(numbers, (q.tokens, k.tokens))
    of_results = {name: x for name, x in results.items() if x is not None}
    named = {
        f"the gradient of {jax.tree_util.keystr(path, simple=True, separator='.')}": x
        for path, x in jax.tree_util.tree_leaves_with_path(gradients)
    }
    return of_results | named


def cotangent(like: jax.Array) -> jax.Array:
    """Numbers between -1 and 1 that half precision has exactly, the same for any dtype."""
    numbers = jnp.arange(like.size, dtype=jnp.float32) * 7 % 17 / 8 - 1
    return numbers.reshape(like.shape).astype(like.dtype)


# Records.


class Record:
    """What agreed, in a file."""

    def __init__(self, about: dict[str, Any]):
        self.about = about
        self.key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        folder = _folder()
        self.path = folder and folder / f"{self.key}.json"

    def exists(self) -> bool:
        """Whether this has agreed before."""
        if self.path is None:
            return False
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none, or one that was cut or damaged
            return False
        return isinstance(record, dict) and record.get("agreed") == self.about

    def keep(self, errors: dict[str, float]) -> None:
        """Writes what agreed and how well; nothing where nothing can be written."""
        if self.path is None:
            return
        text = json.dumps({"agreed": self.about, "differences": errors}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, suffix=".part", delete=False, encoding="utf-8"
            ) as part:
                part.write(text)
            os.replace(part.name, self.path)
        except OSError:
            pass


def _folder() -> Path | None:
    """Where records are; None where there is no home."""
    if cache := os.environ.get("PE_JAX_CACHE"):
        return Path(cache) / "kernels"
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "pe_jax" / "kernels"
    try:
        return Path.home() / ".cache" / "pe_jax" / "kernels"
    except RuntimeError:
        return None


def _about(kernels: Any, device: Any) -> dict[str, Any]:
    """The machine, versions and source of a record."""
    return {
        "kernels": kernels.__name__,
        "device": device.device_kind,
        "capability": str(getattr(device, "compute_capability", "")),
        "platform": device.client.platform_version,
        "versions": _versions(),
        "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
        "source": _source(kernels.__file__),
    }


def _versions() -> dict[str, str]:
    """Those of the packages that compile and launch kernels."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def _source(path: str) -> str:
    """A digest of the engines' source, and of all files beside a module of kernels."""
    folders = Path(reference.__file__).parent, Path(__file__).parent, Path(path).parent
    digest = hashlib.sha256()
    for file in sorted({x for folder in folders for x in folder.glob("*.*") if x.is_file()}):
        if file.suffix in (".py", ".json"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
