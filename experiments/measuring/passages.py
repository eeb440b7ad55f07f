"""The tokens of a text, as a released checkpoint reads them."""

from pe_jax.released.checkpoint import Checkpoint
from pe_jax.training import corpus
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError


def ids(checkpoint: Checkpoint, text: str | None, least: int, wanted: int) -> list[int]:
    """The tokens of a file, or of the longest test document of the embedded corpus.

    Raises:
      ConfigError: no tokenizer; tokens that are fewer than `least` (`wanted` are read).
    """
    if checkpoint.tokenizer is None:
        raise ConfigError(f"{checkpoint.path}: it has no tokenizer.json; add it")
    if text is None:
        documents = corpus.embedded().documents("test")
        content = max((documents[i] for i in range(len(documents))), key=len).decode()
    else:
        content = local("text", text).read_text(encoding="utf-8", errors="replace")
    tokens = checkpoint.tokenizer.encode(content, add_special_tokens=False).ids
    if len(tokens) < least:
        raise ConfigError(f"text={text!r}: {len(tokens)} tokens; pass a text of {wanted} or more")
    return tokens
