"""Questions and replies: Question, AnswerFormat, Tool, Reply, and the exceptions that end a question."""

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
"""A key becomes a file name, so it is short and has no dots or other separators."""
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""Names that all providers accept."""


class Malformed(Exception):
    """An answer does not have its format. The message tells its author what is wrong."""


class NoAnswer(Exception):
    """A question ended without an answer. `cost` and `messages` are those until then."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.cost = Cost()
        self.messages: list[dict[str, Any]] = []


class ModelError(NoAnswer):
    """The question failed. The message is one line: the model, what happened, and what to do."""


class UnusableModel(ModelError):
    """The model can answer no question: its key was rejected, its account is empty, or its name is
    unknown."""


class ServerUnreachable(ModelError):
    """The server did not answer after several attempts."""


class NotRecorded(ModelError):
    """A replay has no recorded answer to this question."""


class CapReached(NoAnswer):
    """The spending cap does not allow the next request."""


class AnswerOutstanding(NoAnswer):
    """The answer has not arrived yet. Ask again later with the same key."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class AnswerFormat(Protocol[T_co]):
    """The required format of an answer: a description for the model, and a parser."""

    @property
    def description(self) -> str:
        """The description of the format for the model."""
        ...

    def parse(self, text: str) -> T_co:
        """Return the answer's value. Raises Malformed."""
        ...


@dataclass(frozen=True)
class Tool:
    """A function that a model may call while it answers."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of an object, in the subset that `schema` supports. Arguments are checked before the
    call."""
    function: Callable[..., str]
    """Called in a thread with the arguments as keywords. The model gets exceptions as text."""
    shell_command: str = ""
    """The equivalent shell command, for the inbox."""

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise ValueError(f"tool {self.name!r}: a name is a letter, then letters, digits, - and _")
        schema.check(self.parameters, f"tool {self.name}")
        if self.parameters.get("type") != "object":
            raise ValueError(f"tool {self.name}: its parameters must be of type object")


@dataclass(frozen=True)
class Question(Generic[T]):
    """One question to a model. Within a run, the same key means the same question."""

    key: str
    """Stable across restarts, like `step-12/plan`."""
    role: str
    """design, plan, code or debug. Costs are counted by role."""
    system: str
    """The system prompt. It is the same for many questions, so that providers can cache it."""
    prompt: str
    answer_format: AnswerFormat[T]
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key) or "__" in self.key:
            raise ValueError(
                f"question {self.key!r}: a key is up to three words (letters, digits, -, single _) joined"
                " by /"
            )

    @property
    def full_prompt(self) -> str:
        """The prompt with the answer format, as a model receives it."""
        return (
            f"{self.prompt.rstrip()}\n\n# Format of your"
            f" answer\n\n{self.answer_format.description.rstrip()}\n"
        )

    @property
    def content_hash(self) -> str:
        """Hash of the whole question. It may differ after a restart, although the key is the same."""
        return digest(self.role, self.system, self.prompt, self.format_hash)

    @property
    def format_hash(self) -> str:
        """Hash of the answer format. If it is equal, an answer to an earlier wording still fits."""
        tools = [
            json.dumps([tool.name, tool.description, tool.parameters], sort_keys=True) for tool in self.tools
        ]
        return digest(self.role, self.answer_format.description, *tools)


@dataclass(frozen=True)
class Reply(Generic[T]):
    """An answer with its cost."""

    value: T
    text: str
    cost: Cost
    messages: list[dict[str, Any]]
    """The whole exchange as JSON: system, user, assistant (with calls), tool, note."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, one line each."""


@dataclass
class Exchange:
    """What happened while a question was answered. It is up to date at any time, also if an error ends it."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""
    dollars: Decimal = Decimal(0)
    """The exact cost in US dollars."""
    tokens_in: int = 0
    tokens_out: int = 0
    calls: int = 0

    def add(self, role: str, text: str, **more: Any) -> None:
        """Append a message. Extra fields without a value are dropped."""
        self.messages.append(
            {"role": role, "text": text} | {name: value for name, value in more.items() if value}
        )

    @property
    def cost(self) -> Cost:
        """The cost so far."""
        return Cost(float(self.dollars), self.tokens_in, self.tokens_out, self.calls)


class Model(Protocol):
    """Answers questions."""

    @property
    def name(self) -> str:
        """Its name as on the command line."""
        ...

    async def ask(self, question: Question[T]) -> Reply[T]:
        """Return the parsed answer. Raises ModelError, CapReached or AnswerOutstanding."""
        ...


class AnswerSource(Protocol):
    """A source of answers: a provider, an inbox or transcripts. `RecordingModel` turns it into a Model."""

    @property
    def name(self) -> str:
        """Its name as on the command line."""
        ...

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        """Return the parsed answer. `exchange` is filled meanwhile, even if an exception is raised."""
        ...
