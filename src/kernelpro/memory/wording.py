"""When two sentences say the same: signatures of error messages, keys of methods; and what a long one says in short.

Both take out what differs between two occasions of the same thing and keep what a person would recognise it by.
"""

from __future__ import annotations

import re

_MOST_CHARACTERS = 200
"""Of a signature: what comes later in a line of a compiler is templates written out."""
_GIST = 160
"""Characters of a plan that others are told of: its first clauses say what was done, the rest is for whoever did it."""
_TELLING = re.compile(r"\berror\b|exception|\bfatal\b|\bassert", re.IGNORECASE)
_TEMPORARIES = (
    (re.compile(r"(?:/[\w.+@~-]+)+/(?=[\w.+@~-]+)"), ""),  # folders; the file's own name stays
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "N"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "N"),  # hashes
    (re.compile(r"\btmp\w*|\b(?:temp|buf|arg|var|reg|t|r|v)_?\d+(?:_\d+)*\b|(?<=[%$])\w+"), "T"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=\b|[a-zA-Z%])"), "N"),
)
_EMPTY_WORD = re.compile(
    r"an?|and|as|at|be|by|do|each|for|from|has|have|in|instead|into|is|its?|more|of|on|one|or|our|per|so|than|that|the|their|then"
    r"|this|to|try|up|use[ds]?|using|via|we|with"
)
_ENDINGS = ("ings", "ing", "ed", "es", "e", "s")
_SHORTEST_STEM = 3


def telling_line(message: str) -> str:
    """Of an error the first line that speaks of one, or the last: that is where Python puts it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if _TELLING.search(line)), lines[-1]) if lines else ""


def error_signature(message: str) -> str:
    """What an error is recognised by: its telling line without numbers, addresses, folders and names of temporaries."""
    text = telling_line(message)
    for pattern, instead in _TEMPORARIES:
        text = pattern.sub(instead, text)
    return re.sub(r"\s+", " ", text)[:_MOST_CHARACTERS].strip()


def method_key(sentence: str) -> str:
    """What a method is recognised by: the stems of its words in alphabetical order, numbers as one."""
    words = re.findall(r"[a-z]+|\d+", sentence.lower().replace("'", ""))
    return " ".join(sorted({_stem(word) for word in words if not _EMPTY_WORD.fullmatch(word)}))


def gist(text: str, longest: int = _GIST) -> str:
    """A plan in short, on one line: without asides, up to the last clause that fits; between words where the first is too long."""
    line = " ".join(text.split()).rstrip(".;,")
    if len(line) > longest:
        line = re.sub(
            r" \((?=(?:[^() ]+ ){3})[^()]*\)(?=[.;:,]|$)", "", line
        )  # of four words or more, behind a clause
    if len(line) <= longest:
        return line
    ends = [
        match.start()
        for match in re.finditer(r"[.;:,] | \(", line[: longest + 1])
        if _closed(line[: match.start()])
    ]
    if ends and ends[-1] >= longest // 3:
        return line[: ends[-1]]
    return line[: longest - 3].rpartition(" ")[0] + " ..."


def _closed(text: str) -> bool:
    return text.count("(") == text.count(")")


def _stem(word: str) -> str:
    if word.isdigit():
        return "n"
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            stem = word[: -len(ending)]
            return (
                stem[:-1] if len(stem) > _SHORTEST_STEM and stem[-1] == stem[-2] and stem[-1] != "s" else stem
            )
    return word
