"""A kernel runs only after it has agreed with the dense engine on the same device.

Before kernels first run a kind of call on a kind of device, they compute a small case like it
(`small_case`), forward and every gradient, and so does the dense engine in float32: some seconds.
`disagreement` says what is wrong, and `dispatch` picks another engine. Every process checks by
itself, each case once.
"""

import concurrent.futures
import functools
import logging
import re
import textwrap
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms import Side
from pe_jax.engines import reference, tiled
from pe_jax.engines.attention_spec import AttentionSpec, Call
from pe_jax.engines.kernels import small_case

# Relative to the largest number of each array. Kernels add in another order, approximate exp2, and
# round weights and gradients of scores to the dtype of q: the least bound is for float32.
LEAST_BOUND, BOUND_IN_EPS = 1e-3, 4
OF_TILES = 2  # times the error of tiles in half precision, as FlashAttention's tests allow
ROUNDING = 1e-3  # a gradient smaller than this part of a term's largest one counts as rounding
TERM = re.compile(r"the gradient of terms\.\d+")
_verdicts: dict[Any, str | None] = {}  # by kernels, device and case, while the process lives


def disagreement(
    kernels: Any, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> str | None:
    """Why kernels must not run a call, or None if they agreed on one like it.

    `kernels` is a module with `attend` and `sample_length`, both functions of a call. Only shapes
    of the call are read: it may be under any trace. The answer is cached by shapes for the life of
    the process.
    """
    return _disagreement(kernels, *small_case.key(Call(spec, terms, q, k, v)))


@functools.lru_cache(4096)
def _disagreement(kernels: Any, spec: AttentionSpec, structure: Any, shapes: tuple) -> str | None:
    try:
        device = jax.local_devices(backend=jax.default_backend())[0]
    except RuntimeError:  # programs are traced for a device that is not there
        return None
    call = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*x) for x in shapes])
    # A new thread has no trace, no mesh, and no other setting of the caller's context.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        problem = thread.submit(_check, kernels, device, Call(spec, *call)).result()
    return problem and f"on this {device.device_kind} {problem}"


def _check(kernels: Any, device: Any, call: Call) -> str | None:
    """Why the kernels fail on a device, for a call of abstract arrays; None: they agree."""
    key = None
    try:
        with (
            jax.default_device(device),
            jax.transfer_guard("allow"),
            jax.default_matmul_precision("highest"),
        ):
            case = small_case.shrink(kernels.sample_length(*call.operands), *call.operands)
            key = kernels, device, small_case.key(case)
            if key not in _verdicts:
                _verdicts[key] = _compare(kernels, case)
            return _verdicts[key]
    except Exception as error:  # a compiler, an allocator or a launch may raise anything
        text = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …")
        wrong = f"it failed when it was tried ({text})"
        if key is not None:
            _verdicts[key] = wrong
        return wrong


def _compare(kernels: Any, case: Call) -> str | None:
    """Why the kernels fail in a case; None: they agree."""
    begin = time.monotonic()
    drawn, dtype = small_case.draw(case), case.q.x.dtype
    errors = differences(kernels.attend, drawn)
    of_tiles = functools.partial(differences, tiled.attend, drawn)
    if wrong := beyond_rounding(errors, dtype, of_tiles):
        return "it differs from the dense engine: {} by {:.2g} of its largest number".format(
            *worst(wrong)
        )
    text = "kernels agree with the dense engine within %.1g of the largest number (%.1f s)"
    logging.getLogger("pe_jax").info(text, max(errors.values()), time.monotonic() - begin)
    return None


def beyond_rounding(
    errors: dict[str, float], dtype: Any, of_tiles: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """The errors that rounding does not explain.

    Rounding explains a few units of the dtype and, in half precision, twice the error of tiles of
    XLA in their worst array, which `of_tiles` computes if needed. Engines that keep no scores take
    the sums of rows, in the backward pass, from the rounded output, and little may be right in a
    gradient that is a sum of numbers that cancel.
    """
    wrong = {name: x for name, x in errors.items() if not x <= bound(dtype)}
    if not wrong or jnp.finfo(dtype).bits > 16:
        return wrong
    most = OF_TILES * max(of_tiles().values())
    return {name: x for name, x in wrong.items() if not x <= most}


def worst(errors: dict[str, float]) -> tuple[str, float]:
    """The name and the size of the largest error; NaN is larger than any."""
    return max(errors.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))


def bound(dtype: Any) -> float:
    """The error that rounding may cause, as a fraction of the largest number of an array."""
    return max(LEAST_BOUND, BOUND_IN_EPS * float(jnp.finfo(dtype).eps))


def differences(attend: Callable, case: Call) -> dict[str, float]:
    """Errors of the output, of row sums if they are read, and of gradients, by name of the array.

    An error is the largest difference from the dense engine as a fraction of the largest number, or
    of the largest of all gradients of a term where this one is only rounding, as for a bias that
    the softmax ignores. It is NaN where there is one.
    """
    q, k = (side._replace(x=side.x.astype(jnp.float32)) for side in (case.q, case.k))
    exact = case._replace(q=q, k=k, v=case.v.astype(jnp.float32))
    got, want = _outcome(attend, case), _outcome(reference.attend, exact)
    of_terms: dict[str, list] = {}  # all gradients of each term
    for name, x in want.items():
        if term := TERM.match(name):
            of_terms.setdefault(term.group(), []).append(x)
    errors = {}
    for name, x in want.items():
        term = TERM.match(name)
        errors[name] = relative_error(got[name], x, *(of_terms[term.group()] if term else ()))
    return errors


def relative_error(got: Any, want: Any, *whole: Any) -> float:
    """The largest difference ÷ the largest number wanted, or of `whole` if that is far larger."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    peak, *other_peaks = (float(np.abs(np.asarray(x)).max(initial=0)) for x in (want, *whole))
    largest = max([peak, *other_peaks])
    largest = largest if peak < ROUNDING * largest else peak
    return float(np.abs(got - want).max(initial=0)) / (largest or 1)


def _outcome(attend: Callable, case: Call) -> dict[str, jax.Array]:
    """Output, row sums and gradients by name, for the same cotangents whatever the dtype."""
    spec, terms, q, k, v = case.operands
    # Queries and keys that are the same tokens share states, of which one gradient is read.
    of_both = q.states if spec.aligned else (q.states, k.states)
    numbers = {"q": q.x, "k": k.x, "v": v, "terms": terms, "states": of_both}
    numbers["unrotated"] = q.raw, k.raw

    @jax.jit
    def run(numbers, tokens):
        def forward(numbers):
            raw, states = numbers["unrotated"], numbers["states"]
            if spec.aligned:
                pairs = zip(states, k.states, strict=True)
                states = states, tuple(None if old is None else new for new, old in pairs)
            sides = (Side(numbers["qk"[n]], raw[n], states[n], tokens[n]) for n in range(2))
            terms = (
                jax.lax.stop_gradient(term) if getattr(term, "linear", False) else term
                for term in numbers["terms"]
            )
            out, lse = attend(spec, tuple(terms), *sides, numbers["v"])
            sums = jnp.where(lse > reference.LOWEST / 2, lse, 0) if spec.lse else None
            return {"the output": out, "row sums": sums}

        results, pull = jax.vjp(forward, numbers)
        return results, pull(jax.tree.map(cotangent, results))[0]

    results, gradients = run(numbers, (q.tokens, k.tokens))
    of_results = {name: x for name, x in results.items() if x is not None}
    of_gradients = {
        f"the gradient of {jax.tree_util.keystr(path, simple=True, separator='.')}": x
        for path, x in jax.tree_util.tree_leaves_with_path(gradients)
    }
    return of_results | of_gradients


def cotangent(like: jax.Array) -> jax.Array:
    """Numbers between -1 and 1 that are exact in half precision, the same for any dtype."""
    numbers = jnp.arange(like.size, dtype=jnp.float32) * 7 % 17 / 8 - 1
    return numbers.reshape(like.shape).astype(like.dtype)
