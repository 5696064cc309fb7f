"""Tokens of sources and queries: parts of identifiers, stems, and synonyms of the field.

`tokens` splits both sources and queries, so that SM90_TMA_LOAD, Sm90TmaLoad and "sm90 tma loads" share the
tokens sm90, tma and load. An identifier of several parts is also a token as a whole, by which exact names and
uses are found.
"""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W\d]\w+|\d+[^\W\d]\w*")
"""Identifiers and sizes (2d, 64x128). Bare numbers and single letters are too common to be useful."""
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+[a-z]*")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+[uUlLfF]+|\d+e\d+")
MAX_WORD_CHARACTERS = 128
"""Longer words are skipped: they are encoded images. The longest identifier in CUTLASS has 122 characters."""

_STOP = """
    a an and are as at be by can do does for from how i in into is it its me my of on or that the their there
    this to use using what when where which why with
"""
STOP = frozenset(_STOP.split())

_SYNONYMS = {
    "wgmma": "gmma",
    "tcgen05": "umma",
    "hopper": "sm90",
    "blackwell": "sm100",
    "ampere": "sm80",
    "turing": "sm75",
    "volta": "sm70",
    "ada": "sm89",
    "bfloat16": "bf16",
    "float8": "fp8",
    "float4": "fp4",
    "tfloat32": "tf32",
    "matmul": "gemm",
    "mbarrier": "barrier",
    "attention": "fmha",
    "threadblock": "cta",
    "descriptor": "desc",
    "pointer": "ptr",
    "coordinate": "coord",
    "predicate": "pred",
    "accumulator": "accum",
    "accumulate": "accum",
    "accumulation": "accum",
    "synchronize": "sync",
    "synchronization": "sync",
    "syncthreads": "sync",
    "smem": "shared memory",
    "gmem": "global memory",
    "tmem": "tensor memory",
    "rmem": "register memory",
    "evt": "visitor tree",
}
"""The name or names under which a synonym is indexed and queried."""


def stem(word: str) -> str:
    """Return the same stem for pipeline, pipelines, pipelined and pipelining.

    Expects lower case. Words with digits or accents are unchanged.
    """
    if not (word.isalpha() and word.isascii()):
        return word
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


_CANONICAL = {stem(word): tuple(map(stem, same.split())) for word, same in _SYNONYMS.items()}


def tokens(word: str) -> tuple[str, ...]:
    """Return the tokens of one word: its parts, then the whole word if it has several parts."""
    if len(word) > MAX_WORD_CHARACTERS or _NUMBER.fullmatch(word):
        return ()
    lower = word.lower()
    parts = _PART.findall(word) if word.isascii() else [part for part in word.split("_") if part]
    found: list[str] = []
    for part in parts:
        part = part.lower()
        if len(part) > 1 or not part.isascii():
            found += _CANONICAL.get(stem(part), (stem(part),))
    if len(parts) == 1:
        return tuple(dict.fromkeys(found))
    return (*dict.fromkeys(found), identifier_token(lower))


def identifier_token(identifier: str) -> str:
    """Return the token of a whole identifier. The prefix `_` distinguishes a name such as `reduced` from the
    stem of a part."""
    return "_" + identifier.lower()


class TokenCache(dict[str, str]):
    """Maps a word to its tokens, each followed by a blank, so that each distinct word is split once."""

    def __missing__(self, word: str) -> str:
        self[word] = found = "".join(f"{token} " for token in tokens(word))
        return found


def terms(query: str) -> list[str]:
    """Return the distinct tokens of a query in order. Stop words count only if there are no other words."""
    words = WORD.findall(query)
    words = [word for word in words if word.lower() not in STOP] or words
    return list(dict.fromkeys(token for word in words for token in tokens(word)))
