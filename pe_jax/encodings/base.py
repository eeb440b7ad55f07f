"""The slots: every place where a position can enter a Transformer, each doing nothing by default.

`Encoding` as it stands is NoPE (no positional encoding; Kazemnejad et al., arXiv 2305.19466).
A scheme is a frozen dataclass that overrides the slots it needs; its parameters are a pytree kept
apart from it, so that the scheme itself can be a static argument of jit.

Legend: B batch, T queries, S keys, H query heads, D model width, E head width, A axes of a
position, n any shape. `distance = q_pos - k_pos`, everywhere: positive looks back.

    score = scale·(rotate_q(q)·rotate_k(k) + q·relative_keys + k·relative_queries)
            + distance_bias + bias                                  (biases in float32)
            + state of q·relative_state + state_bias                (from the layer's input)
            + rescore                                               (from whole rows of scores)
    out   = weights·v + Σ weights·relative_values                   (a fully masked row is 0)
"""

import dataclasses
import itertools
import sys
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

DISTANCE_SLOTS = (
    "distance_bias",
    "relative_keys",
    "relative_queries",
    "relative_values",
    "relative_state",
)


class Params(NamedTuple):
    """Parameters of one layer's encoding: `shared` by the whole model, `layer` its own."""

    shared: Any
    layer: Any


@dataclasses.dataclass(frozen=True)
class Dims:
    """The sizes that a scheme may depend on: global counts, never read from a shard's array."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int


def require(ok: bool, field: str, value: Any, fix: str) -> None:
    """Raises ValueError naming the field, its value and what would be right."""
    if not ok:
        raise ValueError(f"{field}={value!r}: {fix}")


def is_int(value: Any, low: int) -> bool:
    """Whether `value` is an integer (not a bool) of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def is_real(value: Any) -> bool:
    """Whether `value` is a finite number (not a bool)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # also for an integer too large to convert


def require_bool(field: str, value: Any) -> None:
    """Raises ValueError unless `value` is True or False: "no" would count as True."""
    require(isinstance(value, bool), field, value, "pass True or False")


def take(
    table: jax.Array,
    index: jax.Array,
    axis: int = 0,
    rows: int | None = None,
    mode: str | None = None,
) -> jax.Array:
    """The rows of a table at `index` [*n]: one axis of the table becomes the axes *n.

    Under Explicit mesh axes the rows are divided as the index is; JAX asks to be told.

    Raises:
      ValueError: the table has not so many `rows` (None: any): an index could be clamped.
    """
    table, spec = jnp.asarray(table), None
    if rows is not None:
        require(table.shape[axis] == rows, "table", table.shape, f"axis {axis} must have {rows}")
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        own, given = jax.typeof(table).sharding.spec, jax.typeof(index).sharding.spec
        spec = PartitionSpec(*own[:axis], *given, *own[axis + 1 :])
    return table.at[(*[slice(None)] * axis, index)].get(mode=mode, out_sharding=spec)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """No positional encoding: a causal mask alone (arXiv 2305.19466). Also the base of all."""

    axes: ClassVar[int] = 1  # > 1: positions [*B, T, A], distances [*n, A]
    decays: ClassVar[bool] = False  # distance_bias does not rise with |distance|
    real_positions: ClassVar[bool] = False  # float32 positions make sense
    causal_only: ClassVar[bool] = False  # keys ahead of the query (distance < 0) make no sense
    anchored: ClassVar[bool] = False  # rotated q·k depends on more than the distance
    adds_to_q: ClassVar[bool] = False  # rotate_q adds: in a sum, it must come before rotations
    state_width: ClassVar[int] = 0  # C, the numbers a head that `state` gives a token

    def check(self, dims: Dims) -> None:
        """Raises ValueError where the scheme cannot serve these sizes."""

    def at_length(self, length: int) -> "Encoding":
        """The scheme for sequences of `length` tokens, where it depends on that; else itself.

        Generation asks for prompt + new tokens once, for prefill and decoding alike: what is in a
        cache stays valid. Evaluation asks for the length that it evaluates.
        """
        return self

    def init_shared(self, key: jax.Array, dims: Dims) -> Any:
        """Parameters that the whole model shares (float32)."""
        return {}

    def init_layer(self, key: jax.Array, dims: Dims) -> Any:
        """Parameters of one layer (float32)."""
        return {}

    def embed(self, params: Params, x: jax.Array, positions: jax.Array) -> jax.Array:
        """Adds to the input of the first layer, from `shared`: x [*B, T, D], positions [*B, T]."""
        return x

    def rotate_q(self, params: Params, q: jax.Array, positions: jax.Array) -> jax.Array:
        """Maps each query by its position: q [*B, T, H, E]; may widen E."""
        return q

    def rotate_k(self, params: Params, k: jax.Array, positions: jax.Array) -> jax.Array:
        """Maps each key by its position, before it is written to a cache."""
        return k

    def split(self) -> int | None:
        """The distance from which another view of q and k scores a pair; None: there is one view.

        `rotate_q` and `rotate_k` then give two views side by side, [*B, T, H, 2E]: the first half
        scores pairs below this distance (the future too), the second half the others.
        """
        return None

    def scale(self, head_dim: int) -> float:
        """What the dot products are multiplied by; `head_dim` is E before any widening."""
        return head_dim**-0.5

    def bias(self, params: Params, q_pos: jax.Array, k_pos: jax.Array, dims: Dims) -> Any:
        """A bias of absolute positions: float32 [*B, H, T, S], or None."""
        return None

    def distance_bias(self, params: Params, distance: jax.Array, dims: Dims) -> Any:
        """A bias of distances [*n]: float32 [H, *n], or None."""
        return None

    def coefficients(self, params: Params, dims: Dims) -> Any:
        """Optional, for a `distance_bias` that is plain arithmetic: float32 [H, C], or None.

        Engines then compute the bias in place from `profile` and hold no table of it.
        """
        return None

    def profile(self, coefficients: Any, distance: jax.Array) -> jax.Array:
        """`distance_bias` of one head from its C coefficients, each of a shape that broadcasts."""
        raise NotImplementedError

    def relative_keys(self, params: Params, distance: jax.Array) -> Any:
        """Vectors dotted with q as it was before `rotate_q`: [H or 1, *n, E], or None."""
        return None

    def relative_queries(self, params: Params, distance: jax.Array) -> Any:
        """Vectors dotted with k as it was before `rotate_k`: [H or 1, *n, E], or None."""
        return None

    def relative_values(self, params: Params, distance: jax.Array) -> Any:
        """Vectors averaged with the attention weights: [H or 1, *n, E], or None."""
        return None

    def state(self, params: Params, x: jax.Array, before: Any = None) -> Any:
        """Numbers of each token, from the layer's input: float32 [*B, T, H, C], or None.

        A cache keeps them beside the keys. They depend on the token and on those before it in the
        row, whose documents may be several: only differences within one may count.

        Args:
          params: the scheme's parameters.
          x: [*B, T, D].
          before: the state [*B, H, C] of the token before the first, from which a running sum goes
            on. Zeros at the beginning of a row, as is None.
        """
        return None

    def state_after(self, before: jax.Array, state: jax.Array) -> jax.Array:
        """What `state` would have given for tokens after one of state `before`, not the first.

        For schemes whose state sums over tokens, so that parts of a row are summed side by side.

        Args:
          before: float32 [..., H, C]; zeros at the beginning of a row.
          state: float32 [..., T, H, C], from `state(params, x)`.
        """
        return state

    def state_bias(self, q_state: list, k_state: list) -> Any:
        """A bias that is arithmetic on the C numbers of query and key; shapes broadcast: float32.

        Engines compute it in place, pair by pair; all of a pair that is seen must be finite.
        """
        raise NotImplementedError

    def relative_state(self, params: Params, distance: jax.Array) -> Any:
        """Vectors dotted with the query's state: float32 [H or 1, *n, C], or None."""
        return None

    def rescore(self, params: Params, scores, bias, q, seen, dims: Dims) -> Any:
        """What whole rows of scores add to themselves: float32 [B, H, T, S], or None.

        Only the dense engine has whole rows: O(T·S) memory.

        Args:
          params: the scheme's parameters.
          scores: float32 [B, H, T, S], scaled dot products, without biases.
          bias: float32 [B, H, T, S], the sum of all biases, which is added too.
          q: float32 [B, H, T, E], as it was before `rotate_q`, times the scale.
          seen: bool [B or 1, H or 1, T, S], what the mask shows: an adapter's may differ by head.
          dims: the sizes.
        """
        return None

    def horizon(self) -> tuple[int, int] | None:
        """(lo, hi): each distance slot is constant for d ≤ lo and for d ≥ hi; None if never."""
        return None

    def factors(self, params: Params, q_pos: jax.Array, k_pos: jax.Array, dims: Dims) -> Any:
        """Optional, for a `bias` that is a product of what queries and keys have; or None.

        float32 [*B, H, T, C] and [*B, H, S, C], whose dot products over C are the `bias`. The tiled
        engine then multiplies tiles of them and makes no bias pair by pair.
        """
        return None

    def limit(self) -> int | None:
        """Positions from here on are not defined (a learned table's length); None if all are.

        Of several axes: the least size, so that (n, …, n) is not defined. A table of distances is
        defined for distances below it on either side.
        """
        return None

    def overrides(self, slot: str) -> bool:
        """Whether the scheme uses this slot."""
        return getattr(type(self), slot) is not getattr(Encoding, slot)


@dataclasses.dataclass(frozen=True)
class Sum(Encoding):
    """Several encodings at once, as `t5+rope`: biases add, `embed` and rotations chain in order.

    Order matters where a part adds to the queries (Transformer-XL): it comes before those that
    rotate, or the sum would not be relative. Parameters are tuples, one entry a part. At most one
    part may change the scale. ValueError otherwise.
    """

    parts: tuple[Encoding, ...] = ()

    def __post_init__(self):
        for part in self.parts:
            if not isinstance(part, Encoding):
                raise TypeError(f"Sum: {part!r} is no encoding; pass what pe_jax.make gives")
        flat = [
            p for part in self.parts for p in (part.parts if isinstance(part, Sum) else (part,))
        ]
        object.__setattr__(self, "parts", tuple(flat))
        scales = {p.scale(64) for p in flat} - {64**-0.5}
        if len(scales) > 1 or sum(p.scale(64) in scales for p in flat) > 1:
            changed = [type(p).__name__ for p in flat if p.scale(64) in scales]
            raise ValueError(f"Sum: {' and '.join(changed)} each set a scale; keep at most one")
        views = [i for i, p in enumerate(flat) if p.split() is not None]
        after = [p for p in flat[views[0] + 1 :] if p.overrides("rotate_q")] if views else []
        if after:
            first, then = type(flat[views[0]]).__name__, type(after[0]).__name__
            raise ValueError(
                f"Sum: {then} cannot rotate two views; put {first} after it, or leave one"
            )
        if len({p.axes for p in flat if type(p) is not Encoding}) > 1:
            raise ValueError(f"Sum: axes={[p.axes for p in flat]}; the parts must agree")
        for i, part in enumerate(flat):
            turns = [p for p in flat[:i] if p.overrides("rotate_q") and not p.adds_to_q]
            if part.adds_to_q and turns:
                late, early = type(part).__name__, type(turns[0]).__name__
                raise ValueError(f"Sum: {late} adds to the queries; put it before {early}")

    @property
    def axes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Axes of a position, the same for every part."""
        return max((p.axes for p in self.parts), default=1)

    @property
    def real_positions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every part takes float32 positions."""
        return all(p.real_positions for p in self.parts)

    @property
    def anchored(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether any part is."""
        return any(p.anchored for p in self.parts)

    @property
    def causal_only(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a part is for causal attention alone."""
        return any(p.causal_only for p in self.parts)

    @property
    def state_width(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All parts' numbers, one after the other."""
        return sum(p.state_width for p in self.parts)

    @property
    def decays(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every bias decays."""
        biased = [p for p in self.parts if p.overrides("distance_bias")]
        return bool(biased) and all(p.decays for p in biased)

    def _split(self, params: Params) -> list[Params]:
        none = ({},) * len(self.parts)  # `embed` comes before the layers and has `shared` alone
        return list(map(Params, params.shared or none, params.layer or none))

    def _each(self, params: Params):
        return zip(self.parts, self._split(params), strict=True)

    def _add(self, slot: str, params: Params, *args) -> Any:
        terms = [getattr(part, slot)(p, *args) for part, p in self._each(params)]
        terms = [t for t in terms if t is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def check(self, dims: Dims) -> None:
        """Checks every part."""
        for part in self.parts:
            part.check(dims)

    def at_length(self, length):
        """Every part at that length."""
        return Sum(tuple(part.at_length(length) for part in self.parts))

    def init_shared(self, key, dims):
        """A tuple, one entry a part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(p.init_shared(k, dims) for p, k in zip(self.parts, keys, strict=True))

    def init_layer(self, key, dims):
        """A tuple, one entry a part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(p.init_layer(k, dims) for p, k in zip(self.parts, keys, strict=True))

    def embed(self, params, x, positions):
        """Chains in order."""
        for part, p in self._each(params):
            x = part.embed(p, x, positions)
        return x

    def rotate_q(self, params, q, positions):
        """Chains in order."""
        for part, p in self._each(params):
            q = part.rotate_q(p, q, positions)
        return q

    def rotate_k(self, params, k, positions):
        """Chains in order."""
        for part, p in self._each(params):
            k = part.rotate_k(p, k, positions)
        return k

    def split(self):
        """That of the one part with two views."""
        return next((n for p in self.parts if (n := p.split()) is not None), None)

    def scale(self, head_dim):
        """The scale of the one part that changes it."""
        default = head_dim**-0.5
        return next((s for p in self.parts if (s := p.scale(head_dim)) != default), default)

    def bias(self, params, q_pos, k_pos, dims):
        """Adds."""
        return self._add("bias", params, q_pos, k_pos, dims)

    def factors(self, params, q_pos, k_pos, dims):
        """The parts' side by side; None if one of them has a bias without."""
        biased = [(part, p) for part, p in self._each(params) if part.overrides("bias")]
        found = [part.factors(p, q_pos, k_pos, dims) for part, p in biased]
        if not found or any(pair is None for pair in found):
            return None
        return tuple(jnp.concatenate(side, axis=-1) for side in zip(*found, strict=True))

    def distance_bias(self, params, distance, dims):
        """Adds."""
        return self._add("distance_bias", params, distance, dims)

    def _biased(self):
        """The place of the one part with a `distance_bias`; None where there are more, or none."""
        found = [i for i, p in enumerate(self.parts) if p.overrides("distance_bias")]
        return found[0] if len(found) == 1 else None

    def coefficients(self, params, dims):
        """Those of the one part with a distance bias; None if several have one."""
        at = self._biased()
        return None if at is None else self.parts[at].coefficients(self._split(params)[at], dims)

    def profile(self, coefficients, distance):
        """That of the one part with a distance bias."""
        at = self._biased()
        assert at is not None  # or `coefficients` gave None
        return self.parts[at].profile(coefficients, distance)

    def relative_keys(self, params, distance):
        """Adds."""
        return self._add("relative_keys", params, distance)

    def relative_queries(self, params, distance):
        """Adds."""
        return self._add("relative_queries", params, distance)

    def relative_values(self, params, distance):
        """Adds."""
        return self._add("relative_values", params, distance)

    def _places(self):
        """Where each part's numbers lie among the state's: a slice a part."""
        ends = list(itertools.accumulate(p.state_width for p in self.parts))
        return [slice(end - p.state_width, end) for p, end in zip(self.parts, ends, strict=True)]

    def state(self, params, x, before=None):
        """The parts' side by side."""
        found = [
            part.state(p, x, None if before is None else before[..., place])
            for (part, p), place in zip(self._each(params), self._places(), strict=True)
        ]
        found = [s for s in found if s is not None]
        return jnp.concatenate(found, axis=-1) if found else None

    def state_after(self, before, state):
        """Each part's."""
        pairs = zip(self.parts, self._places(), strict=True)
        found = [part.state_after(before[..., at], state[..., at]) for part, at in pairs]
        return jnp.concatenate(found, axis=-1)

    def state_bias(self, q_state, k_state):
        """Adds."""
        pairs = zip(self.parts, self._places(), strict=True)
        pairs = [(part, place) for part, place in pairs if part.overrides("state_bias")]
        terms = [part.state_bias(q_state[at], k_state[at]) for part, at in pairs]
        return sum(terms[1:], terms[0])

    def relative_state(self, params, distance):
        """The parts' side by side; zeros where a part has a state and no vectors."""
        if not self.overrides("relative_state"):
            return None
        found = []
        for part, p in self._each(params):
            vectors = part.relative_state(p, distance)
            if vectors is None:
                shape = distance.shape[: distance.ndim - (self.axes > 1)]
                vectors = jnp.zeros((1, *shape, part.state_width))
            found.append(vectors)
        heads = max(len(x) for x in found)
        return jnp.concatenate([jnp.broadcast_to(x, (heads, *x.shape[1:])) for x in found], axis=-1)

    def rescore(self, params, scores, bias, q, seen, dims):
        """Adds; each part sees the scores without what the others add."""
        return self._add("rescore", params, scores, bias, q, seen, dims)

    def horizon(self):
        """The widest of the parts that look at distances; None if one of them has none."""
        relative = [p for p in self.parts if any(map(p.overrides, DISTANCE_SLOTS))]
        found = [h for p in relative if (h := p.horizon()) is not None]
        if not relative or len(found) < len(relative):
            return None
        return min(lo for lo, _ in found), max(hi for _, hi in found)

    def limit(self):
        """The smallest limit of the parts."""
        return min((n for p in self.parts if (n := p.limit()) is not None), default=None)

    def overrides(self, slot):
        """Whether any part uses the slot."""
        return any(p.overrides(slot) for p in self.parts)
