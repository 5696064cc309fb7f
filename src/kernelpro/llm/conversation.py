"""Asks one provider one question: requests, tool calls and re-asks until the answer has its format.

1. Check the cap, send the conversation, retry transient failures, and record the usage.
2. If the response has tool calls: check their arguments, call the tools, send the results, and go to 1.
3. If it is text: parse it. If it is malformed, say in the same conversation what is wrong, and go to 1.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from kernelpro.llm import failures, schema
from kernelpro.llm.cap import SpendingCap, estimate_tokens
from kernelpro.llm.prices import Tokens
from kernelpro.llm.providers import Pricing, connect
from kernelpro.llm.question import (
    Exchange,
    Malformed,
    ModelError,
    Question,
    ServerUnreachable,
    Tool,
    UnusableModel,
)
from kernelpro.llm.secrets import redact
from kernelpro.llm.settings import ModelSettings
from kernelpro.records import BadInput

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.settings import ModelSettings as LibrarySettings

T = TypeVar("T")

_MAX_RESULT_CHARACTERS = 60_000
"""Size limit of a tool's result, about 20,000 tokens. A whole CUTLASS header fits, a folder dump does not."""
_CUT = "it was cut off at the output token limit, so be briefer; "
_AGAIN = "Please send the complete answer again in that format."
_NO_TEMPERATURE_WITH_THINKING = "claude"
"""Models whose name contains this reject a temperature while they think, whichever provider serves them."""
_EXTRA_ROUNDS = 2
"""In this many more rounds, tool calls beyond the limit are refused. After them, the question fails."""


class ProviderSource:
    """An AnswerSource for models of providers.

    It opens a connection pool for each question and closes it afterwards, so that it works on any event loop.
    """

    def __init__(self, spec: str, settings: ModelSettings, cap: SpendingCap) -> None:
        self.name = spec
        self.settings, self.cap = settings, cap
        self.model: LibraryModel = connect(spec)
        price = settings.prices.get(spec) or settings.prices.get(self.model.model_name)
        self.pricing = Pricing(price, self.model.system, self.model.model_name)
        if cap.limits_dollars and not self.pricing.known:
            give = f"set it with --price {self.model.model_name}=INPUT/OUTPUT (dollars per million tokens)"
            raise BadInput(
                f"{spec}: unknown price, so a dollar limit cannot be enforced; {give}, or limit tokens"
            )
        self._notes_given: set[str] = set()

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        """Hold the conversation and return the parsed answer."""
        async with self.model:
            return await _Conversation(self, question, exchange).run(question)

    def note_once(self, exchange: Exchange, text: str) -> None:
        """Add a note to the exchange, but only the first time for this model."""
        if text not in self._notes_given:
            self._notes_given.add(text)
            exchange.notes.append(f"{self.name}: {text}")

    def library_settings(self, question: Question[Any]) -> LibrarySettings:
        """Settings of one request. The provider caches the fixed part of the prompt if it can, and the
        conversation only if the question has tools."""
        settings = self.settings
        values: dict[str, Any] = {
            "timeout": settings.timeout,
            "request_timeout": settings.timeout,
            "max_retries": 0,  # this class retries, because each attempt must pass the cap
            "cache": {"messages": bool(question.tools)},
        }
        if settings.temperature is not None and not (
            settings.effort and _NO_TEMPERATURE_WITH_THINKING in self.model.model_name
        ):
            values["temperature"] = settings.temperature
        if settings.effort is not None:
            # for a server given by its URL, only the user knows whether it supports reasoning effort
            values["openai_reasoning_effort" if "://" in self.name else "thinking"] = settings.effort
        if settings.max_output_tokens:
            values["max_tokens"] = settings.max_output_tokens
        for name in self.model.unsupported_settings:
            values.pop(name, None)
        return cast("LibrarySettings", values)


@dataclass
class _Conversation:
    """The state of one question."""

    provider: ProviderSource
    question: Question[Any]
    exchange: Exchange
    history: list[ModelMessage] = field(default_factory=list)
    characters: int = 0
    """Length of the next request."""

    async def run(self, question: Question[T]) -> T:
        """Ask until the answer has its format. Raises ModelError, CapReached."""
        settings, rounds, reasks = self.provider.settings, 0, 0
        self.exchange.add("system", redact(question.system))
        self.characters = len(question.system) + sum(
            len(json.dumps(tool.parameters)) for tool in question.tools
        )
        self._send_text(question.full_prompt)
        while True:
            response = await self._request()
            if response.tool_calls:
                rounds += 1
                if rounds > settings.tool_rounds + _EXTRA_ROUNDS:
                    raise ModelError(
                        f"{self.provider.name}: {question.key}: {rounds} rounds of tool calls and no answer"
                    )
                await self._call_tools(list(response.tool_calls), rounds <= settings.tool_rounds)
                continue
            self.exchange.text = redact(response.text or "")
            try:
                return question.answer_format.parse(self.exchange.text)
            except Malformed as fault:
                wrong = f"{_CUT if response.finish_reason == 'length' else ''}{fault}"
                reasks += 1
                if reasks > settings.reasks:
                    name = f"{self.provider.name}: the answer to {question.key}"
                    raise ModelError(f"{name} was malformed {reasks} times; the last time: {wrong}") from None
                self._send_text(f"Your answer does not have the required format: {wrong}\n\n{_AGAIN}")

    def _send_text(self, text: str) -> None:
        from pydantic_ai.messages import UserPromptPart

        text = redact(text)
        self.exchange.add("user", text)
        self._append_request([UserPromptPart(text)], len(text))

    def _append_request(self, parts: list[ModelRequestPart], characters: int) -> None:
        from pydantic_ai.messages import ModelRequest

        self.history.append(ModelRequest(parts=parts, instructions=redact(self.question.system)))
        self.characters += characters

    # --- one request -----------------------------------------------------------------------------------

    async def _request(self) -> ModelResponse:
        from pydantic_ai.exceptions import AgentRunError, UserError

        settings = self.provider.settings
        for attempt in count(1):
            try:
                return await self._attempt()
            except (AgentRunError, UserError, *failures.UNREADABLE) as error:
                failure = failures.classify(error, self.provider.name)
            wait = settings.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            wait = min(wait, settings.max_wait) if failure.retry_after is None else failure.retry_after
            if not failure.transient:
                raise (UnusableModel if failure.permanent else ModelError)(failure.text)
            if attempt > settings.retries:
                raise ServerUnreachable(f"{failure.text}; given up after {attempt} attempts")
            if wait > settings.max_wait:
                raise ServerUnreachable(f"{failure.text}; the server asks to wait {wait:.0f} s: resume later")
            self.exchange.add("note", f"attempt {attempt} failed: {failure.text}")
            await asyncio.sleep(wait)
        raise AssertionError("count() does not end")

    async def _attempt(self) -> ModelResponse:
        from pydantic_ai.direct import model_request
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        provider, tools = self.provider, self.question.tools
        definitions = [
            ToolDefinition(name=t.name, description=t.description, parameters_json_schema=t.parameters)
            for t in tools
        ]
        expected = estimate_tokens(self.characters)
        with provider.cap.request(expected, provider.pricing.prompt_cost(expected)):
            response = await model_request(
                provider.model,
                self.history,
                model_settings=provider.library_settings(self.question),
                model_request_parameters=ModelRequestParameters(function_tools=definitions),
                instrument=False,
            )
            self._record_usage(response, expected)
        return response

    def _record_usage(self, response: ModelResponse, expected: int) -> None:
        """Count the request, here and in the cap, before anything else can fail; then store the response."""
        usage, exchange, provider = response.usage, self.exchange, self.provider
        tokens = Tokens(
            usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens
        )
        calls = [
            {"id": call.tool_call_id, "name": call.tool_name, "arguments": call.args}
            for call in response.tool_calls
        ]
        text, thinking = response.text or "", response.thinking or ""
        output_characters = len(text) + len(thinking) + len(json.dumps(calls))
        if not usage.has_values() or usage.unmeasured_requests:
            tokens = Tokens(expected, estimate_tokens(output_characters))
            provider.note_once(exchange, "the server does not report token usage: token counts are estimates")
        dollars = provider.pricing.response_cost(response, tokens)
        if dollars is None:
            dollars = Decimal(0)
            provider.note_once(
                exchange, "unknown price: tokens are counted, dollars are not; set it with --price"
            )
        provider.cap.charge(self.question.role, self.question.key, dollars, tokens)
        exchange.dollars += dollars
        exchange.tokens_in += tokens.input
        exchange.tokens_out += tokens.output
        exchange.calls += 1
        used = {
            "in": tokens.input,
            "out": tokens.output,
            "cached": tokens.cache_read,
            "dollars": str(dollars),
        }
        exchange.add(
            "assistant",
            redact(text),
            thinking=redact(thinking),
            calls=calls,
            used=used,
            finish=response.finish_reason,
        )
        if response.parts:  # providers reject conversations with an empty turn
            self.history.append(response)
        self.characters += output_characters

    # --- tools -----------------------------------------------------------------------------------------

    async def _call_tools(self, calls: list[ToolCallPart], allowed: bool) -> None:
        from pydantic_ai.messages import ToolReturnPart

        parts: list[ModelRequestPart] = []
        for call in calls:
            failed, text = (
                await self._call_tool(call)
                if allowed
                else (True, "no tool calls are left for this question: answer now")
            )
            text = redact(_truncate(text))
            self.exchange.add("tool", text, id=call.tool_call_id, name=call.tool_name, failed=failed)
            outcome: Literal["failed", "success"] = "failed" if failed else "success"
            parts.append(ToolReturnPart(call.tool_name, text, call.tool_call_id, outcome=outcome))
        self._append_request(
            parts, sum(len(message["text"]) for message in self.exchange.messages[-len(calls) :])
        )

    async def _call_tool(self, call: ToolCallPart) -> tuple[bool, str]:
        """Return whether the call failed, and the text for the model. Exceptions of a tool become text."""
        tools: dict[str, Tool] = {tool.name: tool for tool in self.question.tools}
        tool = tools.get(call.tool_name)
        if tool is None:
            return True, f"unknown tool {call.tool_name}; the tools are: {', '.join(tools) or 'none'}"
        try:
            arguments = json.loads(call.args or "{}") if not isinstance(call.args, dict) else call.args
        except (ValueError, RecursionError) as error:
            return True, f"the arguments are not JSON: {error}"
        if wrong := schema.violations(tool.parameters, arguments):
            return True, f"the arguments are wrong: {'; '.join(wrong)}"
        try:
            return False, str(await asyncio.to_thread(tool.function, **arguments))
        except Exception as error:
            return True, f"{tool.name} failed: {type(error).__name__}: {error}"


def _truncate(text: str) -> str:
    if len(text) <= _MAX_RESULT_CHARACTERS:
        return text
    return (
        f"{text[:_MAX_RESULT_CHARACTERS]}\n[truncated: {len(text) - _MAX_RESULT_CHARACTERS} more characters;"
        " ask for less]"
    )
