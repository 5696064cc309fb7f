"""Keys stay out of prompts, transcripts, files and messages, whatever text they turn up in."""

from __future__ import annotations

import os

_SHORTEST = 8
"""A value shorter than this is no key, and taking it out would maim ordinary text."""
_MARKS = ("_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
"""Endings of the variables that hold keys of providers."""


def redact(text: str) -> str:
    """The text without the value of any key that the environment holds."""
    for name, value in os.environ.items():
        if name.endswith(_MARKS) and len(value) >= _SHORTEST and value in text:
            text = text.replace(value, f"[{name}]")
    return text
