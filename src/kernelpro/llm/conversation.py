"""One question to one provider: request, tool calls, re-asks, until the answer has its form.

1. ask the purse; send the conversation; retry what is worth retrying; pay
2. tool calls: check the arguments, call, send the results back, go to 1
3. text: parse it; malformed: say what is wrong in the same conversation, go to 1; else done
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
from kernelpro.llm.cap import Purse, estimate
from kernelpro.llm.prices import Tokens
from kernelpro.llm.providers import Tariff, connect
from kernelpro.llm.question import Exchange, Malformed, ModelError, NotHeard, Question, Tool, Unusable
from kernelpro.llm.secrets import redact
from kernelpro.llm.settings import Settings
from kernelpro.records import BadInput

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.settings import ModelSettings

T = TypeVar("T")

_LONGEST_RESULT = 60_000
"""Characters of a tool's result, about 20,000 tokens: a whole header of CUTLASS fits, a dump of a folder does not."""
_CUT = "it was cut off at the limit of output tokens, so be briefer; "
_AGAIN = "Please give the whole answer again, in that form."
_OWN_TEMPERATURE = "claude"
"""In the names of models that refuse a temperature while they think, whoever serves them."""
_GRACE = 2
"""Rounds in which a model that has used up its tool calls is told so, before the question is given up."""


class Provider:
    """A Source. Opens a connection pool with each question and closes it after the last, on whatever event loop it is asked."""

    def __init__(self, spec: str, settings: Settings, purse: Purse) -> None:
        self.name = spec
        self.settings, self.purse = settings, purse
        self.model: LibraryModel = connect(spec)
        price = settings.prices.get(spec) or settings.prices.get(self.model.model_name)
        self.tariff = Tariff(price, self.model.system, self.model.model_name)
        if purse.caps_money and not self.tariff.known:
            give = f"give it with --price {self.model.model_name}=INPUT/OUTPUT (dollars per million tokens)"
            raise BadInput(
                f"{spec}: its price is not known, so a cap in dollars would not hold; {give}, or cap the tokens instead"
            )
        self._noted: set[str] = set()

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        async with self.model:
            return await _Conversation(self, question, exchange).run(question)

    def note_once(self, exchange: Exchange, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            exchange.notes.append(f"{self.name}: {text}")

    def library_settings(self, question: Question[Any]) -> ModelSettings:
        """The prompt's fixed part is cached where the provider has that; the conversation only if tools will make it long."""
        settings = self.settings
        wanted: dict[str, Any] = {
            "timeout": settings.timeout,
            "request_timeout": settings.timeout,
            "max_retries": 0,  # retrying is ours: each attempt passes the purse
            "cache": {"messages": bool(question.tools)},
        }
        if settings.temperature is not None and not (
            settings.effort and _OWN_TEMPERATURE in self.model.model_name
        ):
            wanted["temperature"] = settings.temperature
        if settings.effort is not None:
            # of a server by its address the library does not know whether it has efforts; whoever asks for one does
            wanted["openai_reasoning_effort" if "://" in self.name else "thinking"] = settings.effort
        if settings.max_output_tokens:
            wanted["max_tokens"] = settings.max_output_tokens
        for name in self.model.unsupported_settings:
            wanted.pop(name, None)
        return cast("ModelSettings", wanted)


@dataclass
class _Conversation:
    provider: Provider
    question: Question[Any]
    exchange: Exchange
    history: list[ModelMessage] = field(default_factory=list)
    characters: int = 0
    """Of all that the next request sends."""

    async def run(self, question: Question[T]) -> T:
        settings, rounds, reasks = self.provider.settings, 0, 0
        self.exchange.add("system", redact(question.system))
        self.characters = len(question.system) + sum(
            len(json.dumps(tool.parameters)) for tool in question.tools
        )
        self._say(question.task)
        while True:
            response = await self._request()
            if response.tool_calls:
                rounds += 1
                if rounds > settings.tool_rounds + _GRACE:
                    raise ModelError(
                        f"{self.provider.name}: {question.key}: {rounds} rounds of tool calls and no answer"
                    )
                await self._call(list(response.tool_calls), rounds <= settings.tool_rounds)
                continue
            self.exchange.text = redact(response.text or "")
            try:
                return question.form.parse(self.exchange.text)
            except Malformed as fault:
                wrong = f"{_CUT if response.finish_reason == 'length' else ''}{fault}"
                reasks += 1
                if reasks > settings.reasks:
                    name = f"{self.provider.name}: the answer to {question.key}"
                    raise ModelError(f"{name} was malformed {reasks} times; the last time: {wrong}") from None
                self._say(f"Your answer does not have the form asked for: {wrong}\n\n{_AGAIN}")

    def _say(self, text: str) -> None:
        from pydantic_ai.messages import UserPromptPart

        text = redact(text)
        self.exchange.add("user", text)
        self._send([UserPromptPart(text)], len(text))

    def _send(self, parts: list[ModelRequestPart], characters: int) -> None:
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
                failure = failures.judge(error, self.provider.name)
            wait = settings.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            wait = min(wait, settings.longest_wait) if failure.retry_after is None else failure.retry_after
            if not failure.passing:
                raise (Unusable if failure.unusable else ModelError)(failure.text)
            if attempt > settings.retries:
                raise NotHeard(f"{failure.text}; given up after {attempt} attempts")
            if wait > settings.longest_wait:
                raise NotHeard(
                    f"{failure.text}; the server asks to wait {wait:.0f} s: come back then, or raise longest_wait"
                )
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
        expected = estimate(self.characters)
        with provider.purse.request(expected, provider.tariff.of_prompt(expected)):
            response = await model_request(
                provider.model,
                self.history,
                model_settings=provider.library_settings(self.question),
                model_request_parameters=ModelRequestParameters(function_tools=definitions),
                instrument=False,
            )
            self._pay(response, expected)
        return response

    def _pay(self, response: ModelResponse, expected: int) -> None:
        """Count the request, here and in the purse, before anything else can go wrong; then keep what it said."""
        usage, exchange, provider = response.usage, self.exchange, self.provider
        tokens = Tokens(
            usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens
        )
        calls = [
            {"id": call.tool_call_id, "name": call.tool_name, "arguments": call.args}
            for call in response.tool_calls
        ]
        text, thinking = response.text or "", response.thinking or ""
        written = len(text) + len(thinking) + len(json.dumps(calls))
        if not usage.has_values() or usage.unmeasured_requests:
            tokens = Tokens(expected, estimate(written))
            provider.note_once(
                exchange, "the server does not say what a request used: its tokens are estimates"
            )
        money = provider.tariff.of(response, tokens)
        if money is None:
            money = Decimal(0)
            provider.note_once(
                exchange, "its price is not known: tokens count, money does not; --price gives it"
            )
        provider.purse.pay(self.question.role, self.question.key, money, tokens)
        exchange.money += money
        exchange.tokens_in += tokens.input
        exchange.tokens_out += tokens.output
        exchange.calls += 1
        used = {"in": tokens.input, "out": tokens.output, "cached": tokens.read, "money": str(money)}
        exchange.add(
            "assistant",
            redact(text),
            thinking=redact(thinking),
            calls=calls,
            used=used,
            finish=response.finish_reason,
        )
        if response.parts:  # providers refuse a conversation with an empty turn
            self.history.append(response)
        self.characters += written

    # --- tools -----------------------------------------------------------------------------------------

    async def _call(self, calls: list[ToolCallPart], allowed: bool) -> None:
        from pydantic_ai.messages import ToolReturnPart

        parts: list[ModelRequestPart] = []
        for call in calls:
            failed, text = (
                await self._result(call)
                if allowed
                else (True, "no tool calls are left for this question: answer now")
            )
            text = redact(_shortened(text))
            self.exchange.add("tool", text, id=call.tool_call_id, name=call.tool_name, failed=failed)
            outcome: Literal["failed", "success"] = "failed" if failed else "success"
            parts.append(ToolReturnPart(call.tool_name, text, call.tool_call_id, outcome=outcome))
        self._send(parts, sum(len(message["text"]) for message in self.exchange.messages[-len(calls) :]))

    async def _result(self, call: ToolCallPart) -> tuple[bool, str]:
        """Whether it failed, and what to tell the model. Whatever a tool raises is the model's to read."""
        tools: dict[str, Tool] = {tool.name: tool for tool in self.question.tools}
        tool = tools.get(call.tool_name)
        if tool is None:
            return True, f"there is no tool {call.tool_name}; there are: {', '.join(tools) or 'none'}"
        try:
            arguments = json.loads(call.args or "{}") if not isinstance(call.args, dict) else call.args
        except (ValueError, RecursionError) as error:
            return True, f"the arguments are not JSON: {error}"
        if wrong := schema.faults(tool.parameters, arguments):
            return True, f"the arguments are wrong: {'; '.join(wrong)}"
        try:
            return False, str(await asyncio.to_thread(tool.function, **arguments))
        except Exception as error:
            return True, f"{tool.name} failed: {type(error).__name__}: {error}"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_RESULT:
        return text
    return (
        f"{text[:_LONGEST_RESULT]}\n[cut here: {len(text) - _LONGEST_RESULT} more characters; ask for less]"
    )
