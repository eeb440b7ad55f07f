"""Packing: documents of any length to rows of one length, by grain's concat-then-split.

A row holds pieces of one or more documents. A document that crosses the end of a row continues in
the next row as a new segment.
"""

from typing import Any

import grain
import numpy as np


class _Resumable(grain.DatasetIterator):
    """The packing iterator: int32 tokens, and a state that survives a round trip through JSON.

    grain 0.2.18 compares `remainder_slices` with a tuple, but `grain.checkpoint` writes JSON, which
    has lists: "no remainder" comes back as an empty piece of the next document, which is then lost.
    """

    def __init__(self, packer: grain.DatasetIterator):
        super().__init__(packer)
        self._packer = packer

    def __next__(self) -> Any:
        row = next(self._packer)
        return {**row, "tokens": np.asarray(row["tokens"], np.int32)}  # of files: uint16

    def get_state(self) -> dict[str, Any]:
        return self._packer.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        slices = {key: tuple(value) for key, value in state["remainder_slices"].items()}
        self._packer.set_state({**state, "remainder_slices": slices})


class Pack(grain.experimental.ConcatThenSplitIterDataset):
    """`{"tokens": [any]}` to rows `{"tokens", "tokens_segment_ids", "tokens_positions": [width]}`.

    Consecutive rows do not overlap: every token of every document is in exactly one row, once. The
    last row of a finite data set is padded with segment 0.
    """

    def __init__(self, documents: grain.IterDataset, width: int):
        super().__init__(documents, length_struct={"tokens": width})

    def __iter__(self) -> grain.DatasetIterator:
        return _Resumable(super().__iter__())


def begun(row: dict[str, np.ndarray], token: int) -> dict[str, np.ndarray]:
    """A row of `Pack` whose first token, which is no target, is the one that begins documents.

    Released models were trained with it at the start of every text; most of a row's pieces begin
    within a document.
    """
    tokens = np.array(row["tokens"])
    tokens[0] = token
    return {**row, "tokens": tokens}


def targets(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a training batch from a batch of packed rows; its weights mark the targets.

    Args:
      rows: A batch from `Pack`, each [B, width]; `weights`, if any, are those of the tokens.

    Returns:
      `tokens` and `segments` (>= 1, 0 is padding) int32 [B, width], and `weights` float32
      [B, width]: 1 where token t is predicted from tokens < t of its segment. The first token of a
      segment has no context and weighs 0, as does padding. Multiplied by the given weights.
    """
    segments = rows["tokens_segment_ids"]
    weights = np.zeros(segments.shape, np.float32)
    weights[:, 1:] = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return {
        "tokens": rows["tokens"],
        "segments": segments,
        "weights": weights * rows.get("weights", np.float32(1)),
    }
