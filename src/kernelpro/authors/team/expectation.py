"""Parse the speed-up that a plan expects. The first form that matches gives the factor:

    1.4x, about 1.4 times, 1,4x, 1.3x to 1.5x (the lower bound counts), 1.4    the factor
    from 0.5 ms to 0.3 ms, 500 us -> 0.3 ms                                    before / after
    40% faster, a speed-up of 40%                                              1 + p
    30% less time, 30% shorter                                                 1 / (1 - p)

A bare percentage is ambiguous and rejected.
"""

from __future__ import annotations

import re

from kernelpro.records import BadInput

_NUMBER = r"(?<![\d.,])(\d+(?:\.\d+|,\d{1,2})?)(?![\d.,]*\d)"
_TO = r"\s*(?:-+>?|\u2013|\u2014|\u2192|to|down to)\s*"
_TIMES = re.compile(
    rf"(?:{_NUMBER}\s*x?{_TO})?{_NUMBER}\s*(?:x(?!\w)|\u00d7|times\b|-?fold\b)", re.IGNORECASE
)
_UNIT = r"\s*(ns|us|µs|μs|ms|s)"
_FROM_TO = re.compile(rf"{_NUMBER}(?:{_UNIT}\b)?{_TO}{_NUMBER}{_UNIT}\b", re.IGNORECASE)
_PERCENT = re.compile(rf"{_NUMBER}\s*(?:%|per ?cent\b)", re.IGNORECASE)
_FASTER = re.compile(r"faster|speed-? ?up|quicker|throughput", re.IGNORECASE)
_SHORTER = re.compile(r"less|lower|shorter|fewer|reduc|saved?\b|savings?\b|\boff\b", re.IGNORECASE)
_ALONE = re.compile(rf"\W*(?:about|around|roughly|approx\w*\.?)?\s*[~≈]?\s*{_NUMBER}\W*", re.IGNORECASE)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_speedup(text: str) -> float:
    """Return the speed-up as a factor. Raises BadInput if the text is ambiguous."""
    factor = _factor(text)
    if not factor or factor < 0:
        raise BadInput(f"`expected: {text}`: give the speed-up over the kernel above, such as 1.4x")
    return factor


def _factor(text: str) -> float | None:
    if match := _TIMES.search(text):
        return _value(match[1] or match[2])
    if match := _FROM_TO.search(text):
        before, unit, after, last = match.groups()
        ended = _value(after) * _SECONDS[last.lower()]
        return _value(before) * _SECONDS[(unit or last).lower()] / ended if ended else None
    if match := _PERCENT.search(text):
        share = _value(match[1]) / 100
        if bool(_FASTER.search(text)) == bool(_SHORTER.search(text)):
            return None
        return 1 + share if _FASTER.search(text) else 1 / (1 - share) if share < 1 else None
    return _value(match[1]) if (match := _ALONE.fullmatch(text)) else None


def _value(number: str) -> float:
    return float(number.replace(",", "."))
