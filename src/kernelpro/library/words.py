"""Words of source and of questions: identifiers in parts, light stems, synonyms of the field.

Both sides go through `tokens`, so that what is asked meets what is written: SM90_TMA_LOAD, Sm90TmaLoad and "sm90 tma loads" share
sm90, tma, load. An identifier of several parts is a token as a whole, too: that is what finds exact names and uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WORD = re.compile(r"[^\W\d]\w+|\d+[^\W\d]\w*")
"""Identifiers and sizes (2d, 64x128). Bare numbers and single letters are everywhere and find nothing."""
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+[a-z]*")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+[uUlLfF]+|\d+e\d+")
LONGEST = 128
"""Characters of a word; beyond are encoded pictures. The longest identifier in CUTLASS has 122."""

STOP = frozenset(
    "a an and are as at be by can do does for from how i in into is it its me my of on or that the their there this to use using "
    "what when where which why with".split()
)

_SYNONYMS = (
    ("wgmma", "gmma"),
    ("hopper", "sm90"),
    ("blackwell", "sm100"),
    ("ampere", "sm80"),
    ("turing", "sm75"),
    ("ada", "sm89"),
    ("bfloat16", "bf16"),
    ("float8", "fp8"),
    ("matmul", "gemm"),
    ("mbarrier", "barrier"),
    ("tcgen05", "umma"),
    ("attention", "fmha"),
    ("threadblock", "cta"),
)
_PHRASES = (
    (("shared", "memory"), "smem"),
    (("global", "memory"), "gmem"),
    (("tensor", "memory"), "tmem"),
    (("register", "memory"), "rmem"),
    (("visitor", "tree"), "evt"),
    (("grouped", "convolution"), "conv"),
)


def stem(word: str) -> str:
    """One form for pipeline, pipelines, pipelined, pipelining. Applied to lower-case words without digits."""
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def tokens(word: str) -> tuple[str, ...]:
    """The tokens of one word, as `WORD` finds it: its parts, then itself if it has several parts."""
    if len(word) > LONGEST or _NUMBER.fullmatch(word):
        return ()
    lower = word.lower()
    parts = _PART.findall(word) if word.isascii() else [part for part in word.split("_") if part]
    found = []
    for part in parts:
        part = part.lower()
        if len(part) > 1 or not part.isascii():
            found.append(stem(part) if part.isalpha() and part.isascii() else part)
    if len(parts) == 1:
        return tuple(found)
    return (*dict.fromkeys(found), whole(lower))


def whole(identifier: str) -> str:
    """The token of an identifier as it stands. The mark keeps `reduced` as a name apart from the stem of a part."""
    return "_" + identifier.lower()


class Memo(dict[str, str]):
    """Word -> its tokens, a blank after each. Each word is split once: a tree has few distinct ones."""

    def __missing__(self, word: str) -> str:
        self[word] = found = "".join(f"{token} " for token in tokens(word))
        return found


@dataclass(frozen=True)
class Term:
    """One thing that is asked for: any of `alternatives`, all of which are tokens; `exact` names an identifier."""

    alternatives: tuple[str, ...]
    exact: bool = False


def terms(query: str) -> list[Term]:
    """A question as terms, in order, none twice. Words such as "how" count only if there is nothing else."""
    words = WORD.findall(query)
    words = [word for word in words if word.lower() not in STOP] or words
    lower = [stem(word.lower()) for word in words]
    both = {a: b for pair in _SYNONYMS for a, b in (pair, pair[::-1])}
    short = {stem(word): abbreviation for phrase, abbreviation in _PHRASES for word in phrase if {stem(w) for w in phrase} <= set(lower)}
    long = {abbreviation: phrase for phrase, abbreviation in _PHRASES}
    found: dict[str, Term] = {}
    for word in words:
        for token in tokens(word):
            if token.startswith("_"):
                found.setdefault(token, Term((token,), exact=True))
                continue
            others = [both[token]] if token in both else []
            others += [short[token]] if token in short else [stem(word) for word in long.get(token, ())[:1]]
            found.setdefault(token, Term((token, *others)))
        if len(words) == 1 and len(tokens(word)) == 1:
            found[word] = Term(tokens(word), exact=True)
    return list(found.values())
