"""Models of any provider through one library: their names, the variables for keys, and the cost of answers.

The library (pydantic-ai) is imported when a provider is first used, and only by this module, `conversation`
and `failures`. Its features that fetch URLs or search the web are not used: a model receives only text and
KernelPro's tools.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kernelpro.llm.prices import Price, Tokens
from kernelpro.llm.secrets import redact
from kernelpro.records import BadInput

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as LibraryModel

KEY_FOR_URL = "KERNELPRO_API_KEY"
"""The variable with the key for servers given by their URL. Keys of providers are never sent to such a
server."""
_REPORTING = ("openrouter",)
"""Providers that report the cost of every answer."""


@dataclass(frozen=True)
class ProviderInfo:
    """What is needed to use a provider."""

    keys: tuple[str, ...]
    """Environment variables for the key, one of which must be set. Empty if the provider has credentials of
    its own."""
    extra: str
    """The extra of the library to install."""
    default_model: str = ""
    """The model if a key is set and no model is named; empty if a model must be named."""


PROVIDERS = {
    "openai": ProviderInfo(("OPENAI_API_KEY",), "openai", "gpt-5.5"),
    "openai-chat": ProviderInfo(("OPENAI_API_KEY",), "openai"),
    "anthropic": ProviderInfo(("ANTHROPIC_API_KEY",), "anthropic", "claude-opus-5-5"),
    "google": ProviderInfo(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google", "gemini-3.1-pro-preview"),
    "bedrock": ProviderInfo((), "bedrock"),
    "openrouter": ProviderInfo(("OPENROUTER_API_KEY",), "openrouter"),
    "azure": ProviderInfo(("AZURE_OPENAI_API_KEY",), "openai"),
    "deepseek": ProviderInfo(("DEEPSEEK_API_KEY",), "openai", "deepseek-reasoner"),
    "groq": ProviderInfo(("GROQ_API_KEY",), "groq", "openai/gpt-oss-120b"),
    "mistral": ProviderInfo(("MISTRAL_API_KEY",), "mistral", "codestral-latest"),
}


def connect(spec: str) -> LibraryModel:
    """Return the library's model for `provider:model` or `URL#model`. Raises BadInput if it is unusable."""
    warnings.filterwarnings(
        "ignore", "Sampling parameters", UserWarning
    )  # the library drops a temperature that a model rejects
    if "://" in spec:
        return _connect_url(spec.removeprefix("openai-compatible:"))
    name, _, model = spec.partition(":")
    provider = PROVIDERS[name]
    if not model:
        raise BadInput(f"{spec}: no model given; write {name}:MODEL")
    if provider.keys and not any(os.environ.get(key) for key in provider.keys):
        raise BadInput(f"{spec}: no key; set the environment variable {' or '.join(provider.keys)}")
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        try:
            return infer_model(spec)
        except UserError as error:
            raise BadInput(f"{spec}: {redact(' '.join(str(error).split()))}") from None
    except ImportError:
        raise _not_installed(spec, provider.extra) from None


def _connect_url(address: str) -> LibraryModel:
    url, _, model = address.partition("#")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not model:
        raise BadInput(
            f"{url}: write the server's URL and the model, like http://localhost:8000/v1#qwen3-coder"
        )
    if parts.username or parts.password:
        raise BadInput(
            f"{parts.hostname}: remove user and password from the URL; set {KEY_FOR_URL} for a key"
        )
    try:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
    except ImportError:
        raise _not_installed(address, "openai") from None
    provider = OpenAICompatibleProvider(
        "openai-compatible", base_url=url, api_key=os.environ.get(KEY_FOR_URL) or None
    )
    return OpenAIChatModel(model, provider=provider)


def _not_installed(spec: str, extra: str) -> BadInput:
    return BadInput(
        f"{spec}: the client library is not installed; run: pip install 'pydantic-ai-slim[{extra}]>=2.66,<3'"
    )


class Pricing:
    """The cost of requests to one model: by the user's price, else as the provider reports it, else by the
    library's table."""

    def __init__(self, price: Price | None, system: str, model: str) -> None:
        self._price, self._system, self._model = price, system, model

    @property
    def known(self) -> bool:
        """Whether the price of a future answer is known."""
        return bool(self._price) or self._system in _REPORTING or self._table(Tokens(1, 1)) is not None

    def response_cost(self, response: ModelResponse, tokens: Tokens) -> Decimal | None:
        """Return the cost of an answer in dollars; None if the price is unknown."""
        if self._price:
            return self._price.cost(tokens)
        reported = (
            response.usage.cost
            if response.usage.cost is not None
            else (response.provider_details or {}).get("cost")
        )
        if isinstance(reported, (int, float, Decimal)):
            return Decimal(str(reported))
        try:
            return response.cost().total_price
        except (LookupError, ValueError, AssertionError):
            return self._table(tokens)

    def prompt_cost(self, tokens: int) -> Decimal:
        """Return the cost of a prompt in dollars; 0 if the price is unknown."""
        expected = Tokens(input=tokens)
        return (self._price.cost(expected) if self._price else self._table(expected)) or Decimal(0)

    def _table(self, tokens: Tokens) -> Decimal | None:
        from genai_prices import Usage, calc_price

        usage = Usage(
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cache_read_tokens=tokens.cache_read,
            cache_write_tokens=tokens.cache_written,
        )
        try:
            return calc_price(usage, self._model, provider_id=self._system).total_price
        except (LookupError, ValueError):
            return None
