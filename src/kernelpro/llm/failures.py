"""What a failed request means: whether to try again, and how to say it in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelpro.llm.providers import KEY_FOR_URL, PROVIDERS
from kernelpro.llm.secrets import redact

_PASSING_STATUS = {408, 409, 425, 429}
"""Time-out, conflict, too early, too many: they pass. So do all from 500 on."""
_LONGEST = 300
"""Characters of a server's own words."""


UNREADABLE = (TypeError, AttributeError, LookupError, ValueError, AssertionError)
"""What the library raises on an answer that is JSON but not of its protocol."""


@dataclass(frozen=True)
class Failure:
    text: str
    passing: bool
    """Worth trying again."""
    retry_after: float | None = None
    """Seconds, where the server said."""
    unusable: bool = False
    """Of every question, not of this one."""


def judge(error: Exception, name: str) -> Failure:
    """`error` is what the library raised; `name` is how the model was named."""
    from pydantic_ai import exceptions as known

    def final(text: str) -> Failure:
        return Failure(f"{name}: {text}", False)

    def unusable(text: str) -> Failure:
        return Failure(f"{name}: {text}", False, unusable=True)

    def passing(text: str) -> Failure:
        return Failure(f"{name}: {text}", True, getattr(error, "retry_after", None))

    words = _words(error)
    status = f" ({error.status_code})" if isinstance(error, known.ModelHTTPError) else ""
    if isinstance(error, known.ModelAuthenticationError):
        return unusable(f"the key in {_variables(name)} was refused{status}: {words}")
    if isinstance(error, known.ModelQuotaExceededError):
        return unusable(f"the account has no credit left{status}: {words}")
    if isinstance(error, known.ModelNotFoundError):
        return unusable(f"the server does not know this model or address{status}: {words}")
    if isinstance(error, known.ModelContextWindowExceededError):
        return final(f"the prompt is longer than the model can read{status}: {words}")
    if isinstance(error, (known.ModelRequestTimeout, known.ModelTimeoutError)):
        return passing("no answer within the time-out")
    if isinstance(error, known.ModelConnectionError):
        return passing(f"the connection failed: {words}")
    if isinstance(error, known.ModelHTTPError):
        again = error.status_code in _PASSING_STATUS or error.status_code >= 500
        if error.provider_retry_hint is not None:
            again = error.provider_retry_hint
        return (
            passing(f"the server answered {error.status_code}: {words}")
            if again
            else final(f"refused{status}: {words}")
        )
    if isinstance(error, (known.ContentFilterError, known.UserError)):
        return final(words)
    if isinstance(error, (known.ModelAPIError, known.UnexpectedModelBehavior, *UNREADABLE)):
        return passing(f"the server's answer cannot be read: {words}")
    return final(words)


def _words(error: Any) -> str:
    """The server's message, where there is one; on one line, without keys."""
    body = getattr(error, "body", None)
    for _ in range(2):  # {"error": {"message": ...}}
        if isinstance(body, dict):
            body = body.get("error") or body.get("message") or body
            body = body.get("message", body) if isinstance(body, dict) else body
    text = body if isinstance(body, str) and body else str(error)
    return redact(" ".join(text.split()))[:_LONGEST]


def _variables(name: str) -> str:
    provider = PROVIDERS.get(name.partition(":")[0]) if "://" not in name else None
    keys = (KEY_FOR_URL,) if provider is None else provider.keys or ("the credentials of this provider",)
    return " or ".join(keys)
