"""The split of a document by its path: held-out text is never trained on."""

import re
from collections.abc import Iterable, Mapping, Sequence

from pe_jax.validation import ConfigError

SPLITS = ("train", "validation", "test")
WORDS = {"train": "train", "training": "train", "test": "test"}
WORDS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
PREFIX = "(my|news|wiki)?"  # newstest2013.en
# Looks held out, but as validation or test?
UNCLEAR = re.compile(
    rf"(?<![a-z]){PREFIX}(val(id(at(e|ion))?)?|dev(el(opment)?)?|test(ing|s|[a-d])?|tst"
    r"|eval(uation)?|h[eo]ld[^a-z]?out)(?![a-z])"
)


def named_split(name: str) -> str:
    """The split that a file or folder is named after, in upper or lower case; "" if none.

    A word between dots, dashes and underscores says it, with or without a number: `Valid.txt`,
    `c_test.jsonl`, `dev2`, `validation-00000-of-00002.txt`, `newstest2014.en`, `test (1).txt`. A
    held-out split wins over train.
    """
    words = re.split(r"[._-]", name.lower())
    known = re.compile(rf"{PREFIX}({'|'.join(WORDS)})( ?set| ?data|test|dev)?\d*( ?\(\d+\))?")
    splits = [WORDS[match[2]] for match in map(known.fullmatch, words) if match]
    return next((split for split in splits if split != "train"), "train" if splits else "")


def named_folders(paths: Iterable[Sequence[str]]) -> dict[str, str]:
    """The top folders that are named after a split, as `Valid` or `test2`, and that split."""
    firsts = {first for first, *rest in paths if rest}
    words = {first: re.sub(r"(set|data)?[\W_\d]*$", "", first.lower()) for first in firsts}
    return {first: WORDS[word] for first, word in words.items() if word in WORDS}


def splits_of(names: Sequence[str], folders: Mapping[str, str]) -> list[str]:
    """The split that each relative path says; "" if it says none.

    Args:
      names: the paths, with slashes.
      folders: `named_folders`. If there are any, the first part of a path decides, and a path
        outside them counts only for a split without a folder; else the first part that says one.

    Raises:
      ConfigError: a part that says no split looks held out, next to one that says a split.
    """
    splits: list[str] = []
    with_splits: set[tuple[str, ...]] = {()} if folders else set()
    for name in names:
        parts = name.split("/")
        part_splits = [named_split(part) for part in parts]
        if folders:
            outside = part_splits[0] if part_splits[0] not in folders.values() else ""
            splits.append(folders.get(parts[0], outside))
            continue
        splits.append(next(filter(None, part_splits), ""))
        if splits[-1]:
            with_splits.add(tuple(parts[: part_splits.index(splits[-1])]))
    for name, split in zip(names, splits, strict=True):
        parts = name.split("/")
        for depth, part in enumerate(() if split or {*SPLITS} == {*folders.values()} else parts):
            unclear = not named_split(part) and UNCLEAR.search(part.lower())
            if unclear and tuple(parts[:depth]) in with_splits:
                raise ConfigError(
                    f"data: {'/'.join(parts[: depth + 1])} is beside a split; rename it to"
                    " validation or test if it is held out, else to what looks like neither"
                )
    return splits
