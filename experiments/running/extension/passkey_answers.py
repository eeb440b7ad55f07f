"""Passkeys at every length and depth: the questions, and how many answers are right."""

from experiments.running.configs.extend import ExtendConfig
from experiments.running.training_loop import Source
from pe_jax.training import data, passkeys
from pe_jax.training.evaluate import Evaluator


def questions(config: ExtendConfig, source: Source) -> dict[int, tuple | None]:
    """Length → questions for passkeys; None where a length is too short for one."""
    by_length: dict[int, tuple | None] = {}
    for length in config.eval.lengths:
        by_length[length] = None
        if length + 1 >= passkeys.room(source.tokens):
            text = data.eval_windows(
                source.corpus,
                source.tokens,
                split=config.eval.split,
                count=config.trials,
                length=length + 1,
                field="trials",
            )
            by_length[length] = passkeys.questions(text, source.tokens, config.depths, seed=length)
    return by_length


def answers(config: ExtendConfig, evaluator: Evaluator, params, questions: dict) -> dict:
    """The fraction of passkeys and of their tokens that are right, by length and depth.

    Each token is the likeliest after the question and the true answer so far, so that an answer is
    right if greedy decoding gives it.
    """
    by_length: dict = {}
    for length, rows_and_targets in questions.items():
        by_length[str(length)] = None
        if rows_and_targets is not None:
            rows, target = rows_and_targets
            _, correct = evaluator.run(params, rows)
            exact = (correct | ~target).all(1).reshape(config.depths, -1).mean(1)
            tokens = ((correct & target).sum(1) / target.sum(1)).reshape(config.depths, -1).mean(1)
            by_length[str(length)] = {"exact": exact.tolist(), "tokens": tokens.tolist()}
    return by_length
