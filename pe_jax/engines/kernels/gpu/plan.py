"""What is static about a call of the GPU kernels, and the arrays that they read.

Letters are those of `engine`.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from pe_jax.engines.kernels.common import ScorePlan
from pe_jax.engines.kernels.gpu.launches import Launch, Launches

LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Plan(ScorePlan):
    """What is static about a call."""

    lengths: tuple[int, int]  # T and S before padding
    launches: Launches  # of every kernel
    launch: Launch  # of the one at hand
    arch: int  # what they are compiled for: 90 for sm_90
    span: tuple[int, int]  # the least and the largest distance of the tables, if there are any
    far: bool  # whether there are tables that are constant beyond the span, and few distances
    values: bool  # whether weights by distance are wanted
    interpret: bool  # whether the kernels run as plain JAX

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens of an owned block, of a visited one."""
        return self.launch[:2]

    @property
    def distances(self) -> int:
        """How many distances a table holds."""
        return self.span[1] - self.span[0] + 1

    @property
    def indexed(self) -> bool:
        """Whether the mask reads index arrays."""
        return not self.spec.aligned and (self.spec.causal or self.spec.window is not None)

    @property
    def sinks(self) -> int:
        """How many tokens of each document are visible outside the window."""
        return 0 if self.spec.window is None else self.spec.sinks

    @property
    def padded(self) -> bool:
        """Whether keys of the padding could be visible: not if causality hides them."""
        hidden = self.spec.aligned and self.spec.causal
        return not hidden and self.lengths[1] % self.sizes[1] != 0

    def visible_distances(self) -> tuple[float, float]:
        """The least and the largest distance that is visible, by index; may be infinite."""
        window = self.spec.window if self.spec.aligned else None
        high = math.inf if window is None else window - 1
        return 0 if self.spec.aligned and self.spec.causal else -high, high


class PerToken(NamedTuple):
    """One number per query or key, [B or 1, 1, T or S]; None where kernels do not read it."""

    positions: Any = None
    index: Any = None
    rank: Any = None  # of keys: the index within the document, for sinks; None: that in the row
    segments: Any = None
    round: Any = None  # how many before it in its block have its position; -1: padding
    lse: Any = None  # log2 of each row's sum, for gradients, [B, H, T]
    delta: Any = None  # what is subtracted from the gradient of each weight, [B, H, T]


class Arrays(NamedTuple):
    """What kernels read, and its gradients: arrays or references; None where there is none."""

    q: Any = None  # [B, H, T, E]
    k: Any = None  # [B, K, S, E]
    v: Any = None  # [B, K, S, F]
    coefficients: Any = None  # the numbers of all formulas, [1, H, C]
    table: Any = None  # the sum of the biases by distance, [1, H, n]
    rows: Any = None  # what each query adds to its scores, by distance, [B, H, T, n]
    columns: Any = None  # what each key adds to its scores, by distance, [B, H, S, n]
    bias: Any = None  # what is added to the scores of all pairs, [B or 1, H or 1, T, S]
    q_numbers: Any = None  # those of the queries that biases of two tokens read, [B or 1, H, C, T]
    k_numbers: Any = None  # the same of the keys, [B or 1, H, C, S]
    of_query: Any = None  # `PerToken` of the queries
    of_key: Any = None  # `PerToken` of the keys
    bounds: tuple | None = None  # first block to visit, one past the last: [B or 1, H or 1, blocks]
    sinks: tuple | None = None  # the same of what sinks leave visible outside the window
    d_out: Any = None  # cotangent of the output, [B, H, T, F]
    d_weights: Any = None  # cotangent of the weights by distance, [B, H, T, n]
