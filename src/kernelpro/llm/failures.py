"""Classify failed requests: whether to retry, and one line for the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelpro.llm.providers import KEY_FOR_URL, PROVIDERS
from kernelpro.llm.secrets import redact

_TRANSIENT_STATUS = {408, 409, 425, 429}
"""Timeout, conflict, too early, too many requests. All statuses from 500 on are transient too."""
_MAX_CHARACTERS = 300
"""Maximum length of a server's own message."""


UNREADABLE = (TypeError, AttributeError, LookupError, ValueError, AssertionError)
"""Exceptions of the library for answers that are JSON but violate the protocol."""


@dataclass(frozen=True)
class Failure:
    """A failed request."""

    text: str
    transient: bool
    """Whether a retry may succeed."""
    retry_after: float | None = None
    """Seconds to wait before a retry; None if the server did not specify them."""
    permanent: bool = False
    """Whether no question to this model can succeed."""


def classify(error: Exception, name: str) -> Failure:
    """Classify `error`, which the library raised, for the model called `name`."""
    from pydantic_ai import exceptions

    def final(text: str) -> Failure:
        return Failure(f"{name}: {text}", False)

    def permanent(text: str) -> Failure:
        return Failure(f"{name}: {text}", False, permanent=True)

    def transient(text: str) -> Failure:
        return Failure(f"{name}: {text}", True, getattr(error, "retry_after", None))

    message = _server_message(error)
    status = f" ({error.status_code})" if isinstance(error, exceptions.ModelHTTPError) else ""
    if isinstance(error, exceptions.ModelAuthenticationError):
        return permanent(f"the key in {_key_variables(name)} was rejected{status}: {message}")
    if isinstance(error, exceptions.ModelQuotaExceededError):
        return permanent(f"the account has no credit left{status}: {message}")
    if isinstance(error, exceptions.ModelNotFoundError):
        return permanent(f"the server does not know this model or address{status}: {message}")
    if isinstance(error, exceptions.ModelContextWindowExceededError):
        return final(f"the prompt exceeds the context window{status}: {message}")
    if isinstance(error, (exceptions.ModelRequestTimeout, exceptions.ModelTimeoutError)):
        return transient("no answer within the timeout")
    if isinstance(error, exceptions.ModelConnectionError):
        return transient(f"the connection failed: {message}")
    if isinstance(error, exceptions.ModelHTTPError):
        retry = error.status_code in _TRANSIENT_STATUS or error.status_code >= 500
        if error.provider_retry_hint is not None:
            retry = error.provider_retry_hint
        return (
            transient(f"the server answered {error.status_code}: {message}")
            if retry
            else final(f"request rejected{status}: {message}")
        )
    if isinstance(error, (exceptions.ContentFilterError, exceptions.UserError)):
        return final(message)
    if isinstance(error, (exceptions.ModelAPIError, exceptions.UnexpectedModelBehavior, *UNREADABLE)):
        return transient(f"the server's answer cannot be read: {message}")
    return final(message)


def _server_message(error: Any) -> str:
    """Return the server's message as one line, with keys redacted."""
    body = getattr(error, "body", None)
    for _ in range(2):  # {"error": {"message": ...}}
        if isinstance(body, dict):
            body = body.get("error") or body.get("message") or body
            body = body.get("message", body) if isinstance(body, dict) else body
    text = body if isinstance(body, str) and body else str(error)
    return redact(" ".join(text.split()))[:_MAX_CHARACTERS]


def _key_variables(name: str) -> str:
    provider = PROVIDERS.get(name.partition(":")[0]) if "://" not in name else None
    keys = (KEY_FOR_URL,) if provider is None else provider.keys or ("the credentials of this provider",)
    return " or ".join(keys)
