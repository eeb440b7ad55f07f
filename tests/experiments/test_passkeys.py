"""Passkeys: told once, asked for at the end, in training rows and in evaluation."""

import json
import re

import jax
import numpy as np
import pytest

from experiments.running.extension import runs
from pe_jax.training import data, passkeys, tokenizer
from tests.experiments.extensions import base_config, settings
from tests.test_corpus import written
from tests.trainers import change

BYTES = tokenizer.get("bytes")


def test_a_passkey_is_told_once_and_asked_for_at_the_end():
    text = np.full((3, 151), ord("x"), np.int32)
    rows, where = passkeys.questions(text, BYTES, depths=2)
    keys = set()
    for row, answer, depth in zip(rows, where, [0, 0, 0, 1, 1, 1], strict=True):
        said = BYTES.decode(row)
        match = re.fullmatch(
            r"(x*)\nThe pass key is (\d{5})\. Remember it\. (\d{5}) is the pass key\.\n(x*)"
            r"\nWhat is the pass key\? The pass key is (\d{5})",
            said,
        )
        assert match and match[2] == match[3] == match[5]
        assert len(match[1] if depth == 0 else match[4]) == 0
        assert BYTES.decode(row[1:][answer]) == match[5] and answer[-5:].all()
        keys.add(match[5])
    assert len(keys) == 6 and (text == ord("x")).all()


def test_training_rows_ask_within_one_document_and_resume(tmp_path):
    spec = written(tmp_path, {f"{n}": bytes([65 + n]) * (130 if n else 40) for n in range(9)})
    corpus = data.load(f"passkeys:{spec}")
    assert corpus.digest != data.load(spec).digest and "with passkeys" in corpus.describe()
    given = {"length": 150, "batch": 4, "seed": 0}
    batches = data.train_iterator(corpus, BYTES, **given)
    first = [next(batches) for _ in range(8)]
    asked = want = 0
    for batch in first:
        for row, ids, weights in zip(
            batch["tokens"], batch["segments"], batch["weights"], strict=True
        ):
            heavy = []
            want += np.unique(ids, return_counts=True)[1].max() >= passkeys.room(BYTES)
            said = bytes(np.where(row < 256, row, 0).astype(np.uint8))
            for match in re.finditer(
                rb"The pass key is (\d{5})\. Remember it\. (\1)(?s:.*)\? The pass key is (\1)", said
            ):
                assert len({*ids[match.start() - 1 : match.end()]}) == 1
                heavy += [*range(*match.span(2)), *range(*match.span(3))]
                asked += 1
            assert (weights[heavy] == passkeys.WEIGHT).all()
            assert {*np.delete(weights, heavy)} <= {0, 1}
    assert asked == want and 4 < want < 32
    again = data.train_iterator(corpus, BYTES, **given)
    for _ in range(3):
        next(again)
    state = json.loads(json.dumps(again.get_state()))
    resumed = data.train_iterator(corpus, BYTES, **given)
    resumed.set_state(state)
    jax.tree.map(np.testing.assert_array_equal, [next(resumed) for _ in range(5)], first[3:])
    plain = next(data.train_iterator(data.load(spec), BYTES, **given))
    assert (plain["segments"] == first[0]["segments"]).all() and {*plain["weights"].flat} == {0, 1}
    with pytest.raises(ValueError, match="length=64: a passkey needs 103; use longer rows"):
        data.train_iterator(corpus, BYTES, **{**given, "length": 64})
    with pytest.raises(ValueError, match="a task has no text"):
        data.load("passkeys:synthetic:copy")


def test_an_answer_counts_where_all_of_its_tokens_are_the_likeliest(tmp_path):
    rows = np.zeros((4, 7), np.int32)
    where = np.zeros((4, 6), bool)
    where[:, -2:] = True

    class Fake:
        def run(self, params, rows):
            right = np.ones((4, 6), bool)
            right[1, 0] = right[2, -1] = False
            right[3] = False
            return None, right

    config = change(settings(base_config(tmp_path), "unused"), depths=2)
    asked = {6: (rows, where), 3: None}
    found = runs.passkey_accuracy(config, Fake(), None, asked)  # pyright: ignore
    assert found == {"6": {"exact": [1.0, 0.0], "tokens": [1.0, 0.25]}, "3": None}
