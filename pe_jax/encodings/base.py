"""What an encoding is: its settings, its parameters, and the terms that it adds to attention.

    score = q·k/sqrt(E),    out = softmax(score)·v          (a row that sees nothing is 0)

`Encoding` as it stands is NoPE (no positional encoding; Kazemnejad et al., arXiv 2305.19466): no
terms. A scheme is a frozen dataclass that gives some; its parameters are a pytree kept apart from
it, so that the scheme itself can be a static argument of jit. `terms` has the kinds.

Legend: B batch, T queries, H query heads, D model width, A axes of a position, n any shape.
`distance = q_pos - k_pos`, everywhere: positive looks back.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax

from pe_jax.encodings.terms import Input, Term
from pe_jax.numerics.arrays import align


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

    claims: ClassVar[Claims] = Claims()

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

    def limit(self) -> int | None:
        """Positions from here on are not defined (a learned table's length); None if all are.

        Of several axes: the least size, so that (n, …, n) is not defined. A table of distances is
        defined for distances below it on either side.
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

    def inputs(self, shared: Any) -> tuple[Input, ...]:
        """What is added to the input of the first layer, from the shared parameters."""
        return ()

    def terms(self, params: Params, dims: Dims) -> tuple[Term, ...]:
        """What is added to attention, and where; which terms there are, settings alone decide."""
        return ()

    def embed(self, params: Params, x: jax.Array, positions: jax.Array) -> jax.Array:
        """The input of the first layer x [*B, T, D], with `inputs` at positions [*B, T] added."""
        for term in self.inputs(params.shared):
            added = term.fn(term.arrays, positions, x.shape[-1])
            x = x + align(added.astype(x.dtype), x)
        return x


@functools.lru_cache(512)
def skeleton(encoding: Encoding, dims: Dims) -> tuple[Term, ...]:
    """The terms with shapes in the place of arrays: what can be known without parameters."""
    return jax.eval_shape(lambda: encoding.terms(encoding.init(jax.random.key(0), dims), dims))


@functools.lru_cache(512)
def adds_to_input(encoding: Encoding, dims: Dims) -> bool:
    """Whether the scheme adds to the input of the first layer, so that `embed` is to be called."""
    shared = jax.eval_shape(lambda: encoding.init_shared(jax.random.key(0), dims))
    return bool(jax.eval_shape(encoding.inputs, shared))
