"""Tokenizers of checkpoints: from a tokenizer.json, or from the keys of a GGUF file.

A GGUF file has tokens with their types, merges or scores, and the name of a pre-tokenizer, which
`SPLITS` spells out as the models' own tokenizer.json do. Scores are SentencePiece's: the pair whose
union has the highest is merged first, so they are merges in another form.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_jax.released.checkpoint import EXTRA, refuse
from pe_jax.validation import ConfigError, require, shown

UNKNOWN, CONTROL, USER, UNUSED, BYTE = 2, 3, 4, 5, 6  # types of tokens; 1 is the usual
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
WORDS += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How texts are split before bytes, by `tokenizer.ggml.pre`: "gpt2" is GPT-2's expression, "digits"
# digits one by one, then that; others are expressions. NFC normalises, WHOLE takes a word that is a
# token as it is, whatever the merges say, BOS begins every text.
NFC, WHOLE, BOS = "NFC", "WHOLE", "BOS"
LLAMA3 = (WORDS % r"\p{N}{1,3}", WHOLE, BOS)
SPLITS = {
    "default": ("gpt2",),
    "gpt-2": ("gpt2",),
    "mpt": ("gpt2", NFC),
    "olmo": ("gpt2", NFC),
    "smollm": ("digits",),
    "starcoder": ("digits",),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "dbrx": LLAMA3[:1],  # OLMo 2's
    "qwen2": (WORDS % r"\p{N}", NFC),
    "bloom": (r" ?[^(\s|[.,!?…。，、।۔،])]+",),
    "falcon": ("falcon",),
}
BESIDE = "put the model's tokenizer.json beside the file"


def load(path: Path) -> Any:
    """The tokenizer of a tokenizer.json, which neither truncates nor pads.

    Raises:
      ConfigError: it is not a file of the package `tokenizers`, or that is missing.
    """
    tokenizers = _package(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        reason = str(error).partition("\n")[0]
        refuse(path, f"not a file of tokenizers ({reason})", "copy the file again")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _package(path: Any) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(f"{path}: reading it needs tokenizers; {EXTRA}") from error
    return tokenizers


def from_gguf(keys: Mapping[str, Any], beside: Path) -> tuple[Any, dict[str, Any]]:
    """The tokenizer that a file's keys describe, and a checkpoint's `extra`.

    Args:
      keys: of the file.
      beside: a tokenizer.json, which is read if it is there and the keys' kind is not known.

    Raises:
      ConfigError: a kind or a pre-tokenizer that is not known; lists that do not fit each other.
    """
    own = {k.removeprefix("tokenizer.ggml."): v for k, v in keys.items() if "tokenizer.ggml" in k}
    tokens: Any = own.get("tokens")
    ok = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    require(ok and bool(tokens), "tokenizer.ggml.tokens", tokens, f"the file has none; {BESIDE}")
    for name in ("scores", "token_type"):
        count = len(own.get(name, tokens))
        fix = f"must be {len(tokens)}, the number of tokens"
        require(count == len(tokens), f"len(tokenizer.ggml.{name})", count, fix)
    kind, pre = own.get("model"), own.get("pre")
    known = kind == "llama" or (kind == "gpt2" and pre in SPLITS)
    if known:
        tokenizer = (_sentencepiece if kind == "llama" else _byte_level)(own)
    elif beside.is_file():
        tokenizer = load(beside)
        vocab = tokenizer.get_vocab()
        other = sum(vocab.get(token) != index for index, token in enumerate(tokens))
        if other > len(tokens) // 10:
            problem = f"{other} of {len(tokens)} tokens are not those of the GGUF file"
            refuse(beside, problem, "copy the tokenizer.json of this model")
    else:
        kinds = f"read are gpt2 with {', '.join(SPLITS)}, and llama"
        names = f"tokenizer.ggml.model={shown(kind)} with pre={shown(pre)}"
        raise ConfigError(f"{names} is not known: {kinds}; {BESIDE}")
    extra = {"chat_template": keys.get("tokenizer.chat_template")}
    for name in ("bos", "eos"):
        index = own.get(f"{name}_token_id")
        extra[f"{name}_token"] = None if index is None else tokens[index]
    stop = (own.get(f"{name}_token_id") for name in ("eos", "eot", "eom"))
    extra["stop"] = sorted({index for index in stop if index is not None})
    return tokenizer, {name: value for name, value in extra.items() if value not in (None, [])}


def _byte_level(own: Mapping[str, Any]) -> Any:
    """BPE of bytes that are spelled as characters, as GPT-2's."""
    tokenizers = _package("tokenizer.ggml.model=gpt2")
    pre = tokenizers.pre_tokenizers
    split, *options = SPLITS[own["pre"]]
    vocab = {token: index for index, token in enumerate(own["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in own.get("merges", ())]
    bad = next((merge for merge in merges if len(merge) != 2 or "".join(merge) not in vocab), None)
    require(bad is None and bool(merges), "tokenizer.ggml.merges", bad, "pairs of tokens")
    model = tokenizers.models.BPE(vocab=vocab, merges=merges, ignore_merges=WHOLE in options)
    tokenizer = tokenizers.Tokenizer(model)
    spell = pre.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt2", "digits", "falcon"))
    if split == "falcon":
        thousands = pre.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")
        parts = [pre.Punctuation("contiguous"), spell, pre.Digits(False), thousands]
    elif split == "digits":
        parts = [pre.Digits(individual_digits=True), spell]
    else:
        whole = split == "gpt2"
        parts = [spell] if whole else [pre.Split(tokenizers.Regex(split), "isolated"), spell]
    tokenizer.pre_tokenizer = pre.Sequence(parts)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if NFC in options:
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    return _finish(tokenizer, own, vocab, own.get("add_bos_token", BOS in options))


def _sentencepiece(own: Mapping[str, Any]) -> Any:
    """BPE by scores, with bytes for characters that have no token, as Llama 2's and Gemma's."""
    tokenizers = _package("tokenizer.ggml.model=llama")
    decoders, normalizers = tokenizers.decoders, tokenizers.normalizers
    spelled = list(own["tokens"])
    present = set(spelled)
    for index, token in enumerate(spelled):  # several spaces are a token of their own in Gemma
        word = SPACE * len(token)
        if token and not token.strip(" ") and word not in present:
            spelled[index] = word
    vocab = {token: index for index, token in enumerate(spelled)}
    types = own.get("token_type") or [1] * len(spelled)
    unknown = next((t for t, kind in zip(spelled, types, strict=True) if kind == UNKNOWN), None)
    model = tokenizers.models.BPE(
        vocab=vocab,
        merges=_merges(spelled, types, own.get("scores"), vocab),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    steps = [normalizers.Replace(" ", SPACE)]
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if own.get("add_space_prefix", True):
        steps = [normalizers.Prepend(SPACE), *steps]
        back = [*back, decoders.Strip(" ", 1, 0)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(back)
    return _finish(tokenizer, own, vocab, own.get("add_bos_token", True))


def _merges(tokens: list, types: list, scores: list | None, vocab: dict) -> list[tuple[str, str]]:
    """Pairs of tokens by the score of their union, those of user-defined tokens first."""
    require(scores is not None, "tokenizer.ggml.scores", scores, f"missing; {BESIDE}")
    pairs = []
    for token, kind, score in zip(tokens, types, scores or (), strict=True):
        if len(token) < 2 or kind in (UNKNOWN, CONTROL, UNUSED, BYTE):
            continue
        rank = (kind != USER, -score)
        for cut in range(len(token) - 1, 0, -1):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                pairs.append((rank, left, right))
    pairs.sort(key=lambda pair: pair[0])  # stable: of several cuts the last comes first
    return [(left, right) for _, left, right in pairs]


def _finish(tokenizer: Any, own: Mapping[str, Any], vocab: dict[str, int], begin: bool) -> Any:
    """With the tokens that are never cut, and those that begin and end each text."""
    tokenizers = _package("tokenizer.ggml.tokens")
    types = own.get("token_type", ())
    for special, kinds in ((True, (UNKNOWN, CONTROL)), (False, (USER,))):
        names = [t for t, kind in zip(own["tokens"], types, strict=False) if kind in kinds]
        added = [
            tokenizers.AddedToken(name, normalized=False, special=special)
            for name in names
            if name in vocab
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    ends = {"bos": begin, "eos": own.get("add_eos_token", False)}
    ids = {x: own[f"{x}_token_id"] for x, on in ends.items() if on and f"{x}_token_id" in own}
    if ids:
        named = {end: (own["tokens"][index], index) for end, index in ids.items()}
        first, last = ([named[end][0]] if end in named else [] for end in ("bos", "eos"))
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*first, "$A", *last], special_tokens=list(named.values())
        )
    return tokenizer


def first(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts before a text."""
    encoded = tokenizer.encode("a")
    marked = zip(encoded.ids, encoded.special_tokens_mask, strict=True)
    return [token for token, _ in itertools.takewhile(lambda pair: pair[1], marked)]
