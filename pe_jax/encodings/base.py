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
import functools
from typing import Any, ClassVar, NamedTuple

import jax

DISTANCE_SLOTS = (
    "distance_bias",
    "relative_keys",
    "relative_queries",
    "relative_values",
    "relative_state",
)


class Claims(NamedTuple):
    """What a scheme says of the input that it can serve; `attention` refuses other input.

    Attributes:
      axes: of a position; above 1: positions [*B, T, A], distances [*n, A].
      real_positions: float32 positions make sense.
      causal_only: keys ahead of the query (distance < 0) make no sense.
      one_sided: all keys ahead of the query look alike.
      anchored: rotated q·k depends on more than the distance.
    """

    axes: int = 1
    real_positions: bool = False
    causal_only: bool = False
    one_sided: bool = False
    anchored: bool = False


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


@dataclasses.dataclass(frozen=True)
class Encoding:
    """No positional encoding: a causal mask alone (arXiv 2305.19466). Also the base of all."""

    axes: ClassVar[int] = 1  # > 1: positions [*B, T, A], distances [*n, A]
    decays: ClassVar[bool] = False  # distance_bias does not rise with |distance|
    real_positions: ClassVar[bool] = False  # float32 positions make sense
    causal_only: ClassVar[bool] = False  # keys ahead of the query (distance < 0) make no sense
    one_sided: ClassVar[bool] = False  # all keys ahead of the query look alike
    anchored: ClassVar[bool] = False  # rotated q·k depends on more than the distance
    adds_to_q: ClassVar[bool] = False  # rotate_q adds: in a sum, it must come before rotations
    scaled_bias: ClassVar[bool] = False  # distance_bias is multiplied by `scale`, as q·k is
    state_width: ClassVar[int] = 0  # C, the numbers a head that `state` gives a token

    @property
    def claims(self) -> Claims:
        """What input the scheme can serve."""
        return Claims(*(getattr(self, field) for field in Claims._fields))

    def terms(self, params: Params, dims: Dims) -> tuple:
        """What the scheme adds to attention, and where: the kinds of `terms`."""
        from pe_jax.encodings.from_slots import from_slots

        return from_slots(self, params, dims)

    def check(self, dims: Dims) -> None:
        """Raises ValueError where the scheme cannot serve these sizes."""

    def at_length(self, length: int) -> "Encoding":
        """The scheme for sequences of `length` tokens, where it depends on that; else itself.

        Generation asks for prompt + new tokens once, for prefill and decoding alike: what is in a
        cache stays valid. Evaluation asks for the length that it evaluates.
        """
        return self

    def valid_length(self) -> int | None:
        """Positions below this are right as the scheme stands; None: all, 0: none yet.

        A scheme that overrides `at_length` overrides this too: 0 before, so that `attention` asks
        for the length or resolves it, then at least the length that it was called with.
        """
        return None

    def init_shared(self, key: jax.Array, dims: Dims) -> Any:
        """Parameters that the whole model shares (float32)."""
        return {}

    def init_layer(self, key: jax.Array, dims: Dims) -> Any:
        """Parameters of one layer (float32)."""
        return {}

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Parameters of a model of one layer (float32)."""
        shared, layer = jax.random.split(key)
        return Params(self.init_shared(shared, dims), self.init_layer(layer, dims))

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


@functools.lru_cache(512)
def skeleton(encoding: Encoding, dims: Dims) -> tuple:
    """The terms with shapes in the place of arrays: what can be known without parameters."""
    return jax.eval_shape(lambda: encoding.terms(encoding.init(jax.random.key(0), dims), dims))
