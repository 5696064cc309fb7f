"""Recognizes texts that mean the same: signatures of error messages, keys of methods. Also summarizes plans.

Signatures and keys drop what differs between two occurrences of the same thing, and keep what identifies it.
"""

from __future__ import annotations

import re

_MAX_SIGNATURE = 200
"""Characters of a signature. What comes later in a compiler's line is expanded templates."""
_MAX_SUMMARY = 160
"""Characters of a summary. The first clauses of a plan say what was done; the rest is detail."""
_ERROR_WORD = re.compile(r"\berror\b|exception|\bfatal\b|\bassert", re.IGNORECASE)
_TEMPORARIES = (
    (re.compile(r"(?:/[\w.+@~-]+)+/(?=[\w.+@~-]+)"), ""),  # folders; the file's own name stays
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "N"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "N"),  # hashes
    (re.compile(r"\btmp\w*|\b(?:temp|buf|arg|var|reg|t|r|v)_?\d+(?:_\d+)*\b|(?<=[%$])\w+"), "T"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=\b|[a-zA-Z%])"), "N"),
)
_STOP_WORD = re.compile(
    r"an?|and|as|at|be|by|do|each|for|from|has|have|in|instead|into|is|its?|more|of|on|one|or|our|per|so|than|that|the|their|then"
    r"|this|to|try|up|use[ds]?|using|via|we|with"
)
_ENDINGS = ("ings", "ing", "ed", "es", "e", "s")
_MIN_STEM = 3


def error_line(message: str) -> str:
    """The first line of a message that mentions an error, else the last line, where Python reports it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR_WORD.search(line)), lines[-1]) if lines else ""


def error_signature(message: str) -> str:
    """What identifies an error: its error line without numbers, addresses, folders and temporaries."""
    text = error_line(message)
    for pattern, replacement in _TEMPORARIES:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s+", " ", text)[:_MAX_SIGNATURE].strip()


def method_key(sentence: str) -> str:
    """What identifies a method: the stems of its words in alphabetical order. All numbers count as equal."""
    words = re.findall(r"[a-z]+|\d+", sentence.lower().replace("'", ""))
    return " ".join(sorted({_stem(word) for word in words if not _STOP_WORD.fullmatch(word)}))


def summarize(text: str, max_length: int = _MAX_SUMMARY) -> str:
    """A plan on one line: without parentheses, up to the last clause that fits; cut between words if none
    does."""
    line = " ".join(text.split()).rstrip(".;,")
    if len(line) > max_length:
        # Parentheses of four words or more at the end of a clause.
        line = re.sub(r" \((?=(?:[^() ]+ ){3})[^()]*\)(?=[.;:,]|$)", "", line)
    if len(line) <= max_length:
        return line
    ends = [
        match.start()
        for match in re.finditer(r"[.;:,] | \(", line[: max_length + 1])
        if _is_balanced(line[: match.start()])
    ]
    if ends and ends[-1] >= max_length // 3:
        return line[: ends[-1]]
    return line[: max_length - 3].rpartition(" ")[0] + " ..."


def _is_balanced(text: str) -> bool:
    return text.count("(") == text.count(")")


def _stem(word: str) -> str:
    if word.isdigit():
        return "n"
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM:
            stem = word[: -len(ending)]
            return stem[:-1] if len(stem) > _MIN_STEM and stem[-1] == stem[-2] and stem[-1] != "s" else stem
    return word
