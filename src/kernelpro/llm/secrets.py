"""Keeps keys out of prompts, transcripts, files and messages."""

from __future__ import annotations

import os

_MIN_KEY_LENGTH = 8
"""Shorter values are not keys, and replacing them would damage ordinary text."""
_KEY_SUFFIXES = ("_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
"""Suffixes of the environment variables with provider keys."""


def redact(text: str) -> str:
    """Replace the value of every key in the environment by its name."""
    for name, value in os.environ.items():
        if name.endswith(_KEY_SUFFIXES) and len(value) >= _MIN_KEY_LENGTH and value in text:
            text = text.replace(value, f"[{name}]")
    return text
