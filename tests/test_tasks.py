import numpy as np
import pytest

from pe_jax.training import data, tasks

LETTERS = len(tasks.SPECIAL)


def solve(name, row):
    """An independent solver, from the tokens of one row to the answer that it must hold."""
    row = [int(token) for token in row]
    assert row[0] == tasks.BOS
    string = row[1 : row.index(tasks.SEP)]
    assert string and min(string) >= LETTERS
    answer = {"copy": string, "reverse": list(reversed(string))}[name]
    return [*answer, tasks.EOS], len(string)


@pytest.mark.parametrize("name", tasks.TASKS)
def test_an_independent_solver_agrees_and_only_the_answer_is_scored(name):
    batch = next(data.train_iterator(tasks.TASKS[name], None, length=40, batch=64, seed=0))
    lengths = set()
    for tokens, weights, segments, positions in zip(
        *(batch[key] for key in ("tokens", "weights", "segments", "positions")), strict=True
    ):
        answer, length = solve(name, tokens)
        lengths.add(length)
        used = 2 * length + 3
        assert tokens[weights == 1].tolist() == answer
        assert np.flatnonzero(weights).tolist() == list(range(length + 2, used))
        assert (segments == (np.arange(41) < used)).all() and not tokens[used:].any()
        assert positions[:used].tolist() == list(range(used))
        assert tokens.max() < tasks.TASKS[name].vocab
    assert max(lengths) == tasks.longest(41) == 19 and min(lengths) <= 2


def test_rows_are_the_same_on_any_number_of_processes():
    task = tasks.TASKS["reverse"]
    whole = next(data.train_iterator(task, None, length=20, batch=6, seed=5))["tokens"]
    parts = [
        data.train_iterator(
            task, None, length=20, batch=6, seed=5, process_index=i, process_count=3
        )
        for i in range(3)
    ]
    dealt = np.stack([next(part)["tokens"] for part in parts], axis=1).reshape(6, 21)
    np.testing.assert_array_equal(whole, dealt)


def test_resumed_task_continues_exactly():
    make = lambda: data.train_iterator(  # noqa: E731
        tasks.TASKS["copy"], None, length=20, batch=2, seed=1
    )
    batches, resumed = make(), make()
    for _ in range(3):
        next(batches)
    resumed.set_state(batches.get_state())
    np.testing.assert_array_equal(next(batches)["tokens"], next(resumed)["tokens"])


@pytest.mark.parametrize("name", tasks.TASKS)
def test_examples_have_the_length_asked_for_and_are_not_training_rows(name):
    rows = tasks.examples(name, count=32, length=12, seed=0)
    assert {key: value.shape for key, value in rows.items()} == dict.fromkeys(rows, (32, 27))
    assert all(solve(name, row)[1] == 12 for row in rows["tokens"])
    assert (rows["weights"].sum(1) == 13).all() and (rows["segments"] == 1).all()
    again = tasks.examples(tasks.TASKS[name], count=32, length=12, seed=0)
    np.testing.assert_array_equal(rows["tokens"], again["tokens"])
    train = data.train_iterator(tasks.TASKS[name], None, length=26, batch=200, seed=0)
    seen = {row.tobytes() for row in next(train)["tokens"]}
    assert not seen & {row.tobytes() for row in rows["tokens"]}


def test_tasks_have_digests_of_their_own():
    digests = {data.load(f"synthetic:{name}").digest for name in tasks.TASKS}
    assert len(digests) == len(tasks.TASKS)
    assert data.load("synthetic:copy").describe().startswith("synthetic:copy: generated")
