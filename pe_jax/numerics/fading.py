"""Products of queries and keys whose channels fade by the tokens between, as products of matrices.

    score_ij = Σ_n q_i,n k_j,n exp(-|P_i,n - P_j,n|)

P is the sum of each channel's steps up to a token, none of them positive, as `running_sums.totals`
has it: E rounded sums, then what they rounded off. exp(P_i) alone would vanish and exp(-P_j)
overflow. At a token M between the two the factor is exp(-|P_i - M|)·exp(-|M - P_j|), neither of
which exceeds 1: products of one side's vectors with the other's give all pairs that M parts.

B batch, H heads, T queries, S keys, E channels; q [B, H, T, E], k [B, H, S, E], their states 2E,
all float32.
"""

import jax
import jax.numpy as jnp

from pe_jax.numerics.arrays import align, varying_like
from pe_jax.numerics.products import einsum
from pe_jax.numerics.running_sums import difference

FEW = 16  # tokens, up to which going channel by channel is worth it: less is rounded
NEAR = 64  # tokens of a block in `past`
STEEP = 40.0  # exp of twice this is far from float32's end


def before(q: jax.Array, k: jax.Array, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """Of all pairs, where the first query follows all keys and the others follow it: one product.

    The fade of a pair is that from the key to the first query times that from there on.
    """
    first = q_state[:, :, :1]
    queries, keys = _faded_to(first, q, q_state, True), _faded_to(first, k, k_state, False)
    return einsum("bhre,bhce->bhrc", queries, keys)


def _faded_to(
    middle: jax.Array, x: jax.Array, state: jax.Array, after: jax.Array | bool
) -> jax.Array:
    """x·exp(-|P - M|) for tokens `after` the one with the sums M, and for those before it.

    The product of two such on either side of M does not depend on M, which gets no gradient.
    Padding at the end of a row does not matter.
    """
    sums, at_middle = (jnp.split(y, 2, axis=-1) for y in (state, jax.lax.stop_gradient(middle)))
    change = difference(sums, at_middle)
    change = jnp.where(align(after, change), change, -change)
    return x * jnp.exp(jnp.where(change > 0, 0, change))


def in_order(q: jax.Array, k: jax.Array, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """Of all pairs, where queries and keys are the same tokens in order: float32 [B, H, T, T]."""
    earlier, later = past(q, k, q_state, k_state), past(k, q, k_state, q_state)
    return jnp.where(align(jnp.tri(q.shape[2], dtype=bool), q), earlier, jnp.swapaxes(later, 2, 3))


def past(q: jax.Array, k: jax.Array, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """As `in_order`, of pairs whose key is not later; others have any number, of their size.

    Blocks of `NEAR` tokens are joined two by two: all pairs between two are one product.
    """
    batch, heads, length, _ = q.shape
    blocks = 1 << (-(-length // NEAR) - 1).bit_length()
    size = -(-length // blocks)
    more = [(0, 0), (0, 0), (0, blocks * size - length), (0, 0)]
    sides = [jnp.pad(x, more, "edge") for x in (q, k, q_state, k_state)]
    scores = in_block(*(x.reshape(batch, heads * blocks, size, -1) for x in sides))
    while blocks > 1:
        q, k, *states = (x.reshape(batch, -1, 2, size, x.shape[-1]) for x in sides)
        q, k, q_state, k_state = q[:, :, 1], k[:, :, 0], states[0][:, :, 1], states[1][:, :, 0]
        same = scores.reshape(batch, -1, 2, size, size)
        first = jnp.pad(same[:, :, 0], [(0, 0), (0, 0), (0, 0), (0, size)])
        second = jnp.concatenate([before(q, k, q_state, k_state), same[:, :, 1]], -1)
        scores, size, blocks = jnp.concatenate([first, second], -2), 2 * size, blocks // 2
    return scores[:, :, :length, :length]


def in_block(q: jax.Array, k: jax.Array, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """As `past`, of few tokens: `near`, or one product where that is safe; leading axes are any.

    It is where no sum is farther than `STEEP` from M in the middle: neither factor exp(P - M) nor
    exp(M - P') is near overflow. Their product may be for later keys, which get 0.
    """
    sides, at = (q_state, k_state), q.shape[-2] // 2
    sums = [jnp.split(y, 2, axis=-1) for y in sides]
    middle = [jax.lax.stop_gradient(y[..., at : at + 1, :]) for y in sums[0]]
    row, column = (difference(y, middle) for y in sums)

    def product():
        pairs = einsum("...re,...ce->...rc", q * jnp.exp(row), k * jnp.exp(-column))
        return _own(q, k) + jnp.where(
            align(jnp.tri(q.shape[-2], k=-1, dtype=bool), pairs), pairs, 0
        )

    steepest = jnp.maximum(jnp.abs(row).max(), jnp.abs(column).max())
    return jax.lax.cond(steepest <= STEEP, product, lambda: near(q, k, *sides))


def near(q: jax.Array, k: jax.Array, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """The same for few tokens, in the logarithm of so many products; leading axes are any.

    They are halved again and again; a product gives the pairs that one halving parts.
    """
    token = jnp.arange(q.shape[-2], dtype=jnp.int32)

    @jax.checkpoint  # else the gradient keeps what fades of every halving
    def halved(scores, level):
        half = token >> level
        middle = jnp.minimum((half | 1) << level, token[-1])
        middle, after = jnp.take(q_state, middle, axis=-2), (half & 1 == 1)[:, None]
        queries, keys = (_faded_to(middle, x, y, after) for x, y in ((q, q_state), (k, k_state)))
        parted = align(half[:, None] ^ half[None] == 1, scores)
        return jnp.where(parted, einsum("...re,...ce->...rc", queries, keys), scores), None

    own = _own(q, k)
    levels = jnp.arange((len(token) - 1).bit_length(), dtype=jnp.int32)
    return jax.lax.scan(halved, varying_like(own, (q, k, q_state, k_state)), levels)[0]


def _own(q: jax.Array, k: jax.Array) -> jax.Array:
    """The products of each token with itself, which does not fade; 0 for all other pairs.

    By themselves, so that they give no gradient to the sums: in a product they would reach a sum
    from both sides, with opposite signs, and leave their rounding errors.
    """
    products = (q * k).sum(-1)[..., None]
    return align(jnp.eye(q.shape[-2], dtype=products.dtype), products) * products
