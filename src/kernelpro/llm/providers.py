"""Models of any provider, through one library: how they are named, which variable holds the key, what an answer cost.

The library (pydantic-ai) is imported when a provider is first used, and by this file and `conversation` alone. Its
features that fetch addresses or search the web are not used: a model is sent text and our tools, and nothing else.
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
"""For servers named by their address; keys of providers are never sent there."""
_REPORTING = ("openrouter",)
"""Providers that say with every answer what it cost."""


@dataclass(frozen=True)
class Vendor:
    keys: tuple[str, ...]
    """Variables that hold the key, one of which is needed; none: the provider has ways of its own."""
    extra: str
    """What the library needs installed for it."""
    model: str = ""
    """The one that is taken where a key is there and no model was named; empty: it has to be named."""


PROVIDERS = {
    "openai": Vendor(("OPENAI_API_KEY",), "openai", "gpt-5.5"),
    "openai-chat": Vendor(("OPENAI_API_KEY",), "openai"),
    "anthropic": Vendor(("ANTHROPIC_API_KEY",), "anthropic", "claude-opus-5-5"),
    "google": Vendor(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google", "gemini-3.1-pro-preview"),
    "bedrock": Vendor((), "bedrock"),
    "openrouter": Vendor(("OPENROUTER_API_KEY",), "openrouter"),
    "azure": Vendor(("AZURE_OPENAI_API_KEY",), "openai"),
    "deepseek": Vendor(("DEEPSEEK_API_KEY",), "openai", "deepseek-reasoner"),
    "groq": Vendor(("GROQ_API_KEY",), "groq", "openai/gpt-oss-120b"),
    "mistral": Vendor(("MISTRAL_API_KEY",), "mistral", "codestral-latest"),
}


def connect(spec: str) -> LibraryModel:
    """The library's model for `provider:model`, or for `URL#model`. Raises BadInput: what is missing, and where it goes."""
    warnings.filterwarnings(
        "ignore", "Sampling parameters", UserWarning
    )  # where a model takes no temperature, none is sent
    if "://" in spec:
        return _at_url(spec.removeprefix("openai-compatible:"))
    name, _, model = spec.partition(":")
    provider = PROVIDERS[name]
    if not model:
        raise BadInput(f"{spec}: which model? Write {name}:MODEL")
    if provider.keys and not any(os.environ.get(key) for key in provider.keys):
        raise BadInput(
            f"{spec}: there is no key; put it into the environment variable {' or '.join(provider.keys)}"
        )
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        try:
            return infer_model(spec)
        except UserError as error:
            raise BadInput(f"{spec}: {redact(' '.join(str(error).split()))}") from None
    except ImportError:
        raise _not_installed(spec, provider.extra) from None


def _at_url(address: str) -> LibraryModel:
    url, _, model = address.partition("#")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not model:
        raise BadInput(
            f"{url}: write the address of the server and the model's name, like http://localhost:8000/v1#qwen3-coder"
        )
    if parts.username or parts.password:
        raise BadInput(
            f"{parts.hostname}: leave user and password out of the address; a key goes into {KEY_FOR_URL}"
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
        f"{spec}: the library for it is not installed; run: pip install 'pydantic-ai-slim[{extra}]>=2.66,<3'"
    )


class Tariff:
    """What requests to one model cost: a person's price, else what the provider reports, else the library's table."""

    def __init__(self, price: Price | None, system: str, model: str) -> None:
        self._price, self._system, self._model = price, system, model

    @property
    def known(self) -> bool:
        """Whether an answer that has not come yet will have a price."""
        return bool(self._price) or self._system in _REPORTING or self._table(Tokens(1, 1)) is not None

    def of(self, response: ModelResponse, tokens: Tokens) -> Decimal | None:
        """Dollars of an answer; None where nobody knows the price."""
        if self._price:
            return self._price.of(tokens)
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

    def of_prompt(self, tokens: int) -> Decimal:
        """Dollars of a prompt that is about to be sent; 0 where nobody knows the price."""
        expected = Tokens(input=tokens)
        return (self._price.of(expected) if self._price else self._table(expected)) or Decimal(0)

    def _table(self, tokens: Tokens) -> Decimal | None:
        from genai_prices import Usage, calc_price

        usage = Usage(
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cache_read_tokens=tokens.read,
            cache_write_tokens=tokens.written,
        )
        try:
            return calc_price(usage, self._model, provider_id=self._system).total_price
        except (LookupError, ValueError):
            return None
