"""What is asked and what comes back: Question, Form, Tool, Reply, and the ways to have no answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

from kernelpro.llm import schema
from kernelpro.records import Cost, digest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}(/[A-Za-z0-9_-]{1,60}){0,2}")
"""A key becomes a file's name, so it is short and has neither dots nor other separators."""
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What all providers accept."""


class Malformed(Exception):
    """An answer does not have its form. The message says what is wrong, to whoever wrote the answer."""


class NoAnswer(Exception):
    """A question ended without an answer. What it cost all the same, and the exchange so far, are kept here."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.cost = Cost()
        self.messages: list[dict[str, Any]] = []


class ModelError(NoAnswer):
    """It failed for good. The message is one line: which model, what happened, what to do."""


class Unusable(ModelError):
    """The model will answer nothing: its key is refused, its account empty, its name unknown. Whoever named it has to act."""


class NotHeard(ModelError):
    """The server was asked several times and gave no answer: nothing is known of the model."""


class NotRecorded(ModelError):
    """A replay was asked for more than was recorded."""


class CapReached(NoAnswer):
    """The purse is empty, or does not hold what the next request needs."""


class Outstanding(NoAnswer):
    """The answer is not there yet; asking again later, with the same key, finds it."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class Form(Protocol[T_co]):
    """What an answer must look like: in words for the model, and as a check."""

    @property
    def description(self) -> str: ...

    def parse(self, text: str) -> T_co:
        """The answer's value; raises Malformed."""
        ...


@dataclass(frozen=True)
class Tool:
    """Something a model may call while it answers."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of an object, in the words that `schema` knows; arguments are checked against it before the call."""
    function: Callable[..., str]
    """Called in a thread with the arguments as keywords. What it raises goes to the model as text."""
    command: str = ""
    """How a person has the same from a command line; for the inbox."""

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise ValueError(f"tool {self.name!r}: a name is a letter, then letters, digits, - and _")
        schema.check(self.parameters, f"tool {self.name}")
        if self.parameters.get("type") != "object":
            raise ValueError(f"tool {self.name}: its parameters must be of type object")


@dataclass(frozen=True)
class Question(Generic[T]):
    """One thing a model is asked. A key is asked about once in a run: asked again, it is the same question."""

    key: str
    """Stable across restarts, like `step-12/plan`."""
    role: str
    """plan, code, debug ...: what costs are counted under."""
    system: str
    """The same for many questions, so that providers can cache it."""
    prompt: str
    form: Form[T]
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key) or "__" in self.key:
            raise ValueError(
                f"question {self.key!r}: a key is up to three words of letters, digits, - and single _, joined by /"
            )

    @property
    def task(self) -> str:
        """The prompt with the form of the answer: what a model is sent."""
        return f"{self.prompt.rstrip()}\n\n# The form of your answer\n\n{self.form.description.rstrip()}\n"

    @property
    def content(self) -> str:
        """Hash of all that is asked; two questions with the same key may differ in it after a restart."""
        return digest(self.role, self.system, self.prompt, self.shape)

    @property
    def shape(self) -> str:
        """Hash of what an answer must fit: an answer to another wording still fits if this is the same."""
        tools = [
            json.dumps([tool.name, tool.description, tool.parameters], sort_keys=True) for tool in self.tools
        ]
        return digest(self.role, self.form.description, *tools)


@dataclass(frozen=True)
class Reply(Generic[T]):
    value: T
    text: str
    cost: Cost
    messages: list[dict[str, Any]]
    """The whole exchange as plain JSON: system, user, assistant (with calls), tool, note."""
    notes: tuple[str, ...] = ()
    """What a person should know about this answer, a line each."""


@dataclass
class Exchange:
    """What happens while a question is being answered; complete up to the moment anything stops it."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""
    money: Decimal = Decimal(0)
    """US dollars, exact."""
    tokens_in: int = 0
    tokens_out: int = 0
    calls: int = 0

    def add(self, role: str, text: str, **more: Any) -> None:
        self.messages.append(
            {"role": role, "text": text} | {name: value for name, value in more.items() if value}
        )

    @property
    def cost(self) -> Cost:
        return Cost(float(self.money), self.tokens_in, self.tokens_out, self.calls)


class Model(Protocol):
    """Whoever answers questions."""

    @property
    def name(self) -> str: ...

    async def ask(self, question: Question[T]) -> Reply[T]:
        """The answer, checked against its form. Raises ModelError, CapReached or Outstanding."""
        ...


class Source(Protocol):
    """Where answers come from: a provider, an inbox, transcripts. `Recorded` makes a Model of it."""

    @property
    def name(self) -> str: ...

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        """The value; `exchange` is filled as things happen, whatever ends them."""
        ...
