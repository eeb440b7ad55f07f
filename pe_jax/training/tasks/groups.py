"""Word problems: the product of the elements of a finite group so far, at each of them.

Those of A5 and S5, which are not solvable, are complete for NC¹: no transformer of constant depth
solves them at every length unless TC⁰ = NC¹ (arXiv 2404.08819); with a depth of O(log n) one does
(2210.10749). As there, each element is one symbol, elements are uniform, and the model is scored at
each place: a decoder cannot read the product of the elements before, as it could in an answer after
the question. N longest question, G elements.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.training.tasks.base import Example


def elements(degree: int, even: bool) -> np.ndarray:
    """Permutations of 0 to degree - 1 in lexicographic order: int32 [G, degree].

    Args:
      degree: number of objects.
      even: whether only those with an even number of inversions, the alternating group.
    """
    permutations = np.array([*itertools.permutations(range(degree))], np.int32)
    first, second = np.triu_indices(degree, 1)
    inversions = (permutations[:, first] > permutations[:, second]).sum(1)
    return permutations[inversions % 2 == 0] if even else permutations


@functools.cache
def multiplication_table(degree: int, even: bool) -> np.ndarray:
    """The number of a·b, which takes x to a(b(x)), by those of a and b: int32 [G, G].

    Args:
      degree: as in `elements`, whose order gives the numbers; 0 is the identity.
      even: the same.
    """
    permutations, places = elements(degree, even), degree ** np.arange(degree)[::-1]
    products = permutations[:, permutations]  # [G, G, degree]
    return np.searchsorted(permutations @ places, products @ places).astype(np.int32)


def prefix_products(key: jax.Array, n: Any, size: int, *, degree: int, even: bool) -> Example:
    """Uniform elements g₁, …, gₙ of a group; at the place of each gᵢ the product g₁·…·gᵢ.

    Args:
      key: the same key gives the same example.
      n: elements of the question; may be traced.
      size: N.
      degree: of the group, as in `elements`.
      even: whether it is the alternating group, and not the symmetric one.
    """
    table = jnp.asarray(multiplication_table(degree, even))
    drawn = jax.random.randint(key, (size,), 0, len(table))
    return Example(drawn, n, jax.lax.associative_scan(lambda a, b: table[a, b], drawn), n)
