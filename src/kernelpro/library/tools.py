"""The library as tools for agents: plain functions from text to text, with their JSON schemas.

An agent names a tree, never a folder; what it asks in a wrong way comes back as a line that begins with `error:`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from kernelpro.library import asking
from kernelpro.library.answers import MOST_LINES
from kernelpro.library.asking import MOST
from kernelpro.library.trees import named
from kernelpro.records import BadInput

_P = ParamSpec("_P")
_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class Tool:
    """What the LLM layer needs to offer a function: its name, what it is for, the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., str]


def _answering(function: Callable[_P, str]) -> Callable[_P, str]:
    """Check the arguments against the signature; word what is wrong as text."""
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def answer(*args: _P.args, **kwargs: _P.kwargs) -> str:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            return f"error: {error}; arguments: {', '.join(signature.parameters)}"
        try:
            for name, value in given.items():
                wanted = signature.parameters[name].annotation
                if type(value) is not wanted:
                    raise BadInput(f"{name}={value!r}: must be {_KINDS[wanted]}")
                if isinstance(value, str) and "\0" in value:
                    raise BadInput(f"{name}: holds a zero character")
            return function(*args, **kwargs)
        except BadInput as error:
            return f"error: {error}"

    return answer


@_answering
def search(query: str, tree: str = "cutlass", limit: int = 10) -> str:
    """Ranked passages for a question in words or identifiers."""
    return asking.search(named(tree), query, limit).text


@_answering
def grep(
    pattern: str,
    tree: str = "cutlass",
    regex: bool = False,
    glob: str = "",
    ignore_case: bool = False,
    limit: int = 30,
) -> str:
    """Every line with that text, or that matches that regular expression."""
    return asking.grep(named(tree), pattern, regex, glob, ignore_case, limit).text


@_answering
def outline(path: str, tree: str = "cutlass") -> str:
    """What a file defines, with lines."""
    return asking.outline(named(tree), path).text


@_answering
def read(path: str, start: int = 1, end: int = 0, tree: str = "cutlass") -> str:
    """Lines of a file."""
    return asking.read(named(tree), path, start, end).text


@_answering
def definition(symbol: str, tree: str = "cutlass", limit: int = 10) -> str:
    """Where a name is defined."""
    return asking.definition(named(tree), symbol, limit).text


@_answering
def uses(symbol: str, tree: str = "cutlass", limit: int = 20) -> str:
    """Where a name is used."""
    return asking.uses(named(tree), symbol, limit).text


def _schema(*required: str, **properties: tuple[str, str]) -> dict[str, Any]:
    properties["tree"] = ("string", "Name of the tree; default cutlass.")
    made: dict[str, dict[str, Any]] = {
        name: {"type": kind, "description": text} for name, (kind, text) in properties.items()
    }
    if "limit" in made:
        made["limit"] |= {"minimum": 1, "maximum": MOST}
    return {"type": "object", "properties": made, "required": list(required), "additionalProperties": False}


_LIMIT = ("integer", "How many results.")
TOOLS = (
    Tool(
        "search",
        "Find passages about something, best first: words, identifiers or both (`tma load sm90`, `make_tiled_copy`). Start here.",
        _schema("query", query=("string", "A few words or identifiers."), limit=_LIMIT),
        search,
    ),
    Tool(
        "grep",
        "Every line that holds exact text, or matches a Python regular expression, in order of paths.",
        _schema(
            "pattern",
            pattern=("string", "Text, or a regular expression with regex=true."),
            regex=("boolean", "The pattern is a regular expression."),
            glob=("string", "Only in these files: *.hpp, include/cute/**/*.hpp."),
            ignore_case=("boolean", "Upper and lower case are the same."),
            limit=_LIMIT,
        ),
        grep,
    ),
    Tool(
        "outline",
        "What a file defines, with line ranges: look here before reading.",
        _schema(
            "path",
            path=(
                "string",
                "A file, from the root of the tree; the end of its path does if it is the only one.",
            ),
        ),
        outline,
    ),
    Tool(
        "read",
        f"Lines of a file, at most {MOST_LINES} at once; 100 from start unless end is given.",
        _schema(
            "path",
            path=("string", "File."),
            start=("integer", "First line, from 1."),
            end=("integer", "Last line."),
        ),
        read,
    ),
    Tool(
        "definition",
        "Where a function, class, alias or macro is defined, with its signature; overloads and specialisations too.",
        _schema(
            "symbol",
            symbol=("string", "A name: TiledCopy, cute::make_layout, TiledCopy::get_slice."),
            limit=_LIMIT,
        ),
        definition,
    ),
    Tool(
        "uses",
        "Lines that use a name, examples first: how others call it.",
        _schema("symbol", symbol=("string", "A name, in its exact case."), limit=_LIMIT),
        uses,
    ),
)
