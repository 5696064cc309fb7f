"""Code search as tools for agents: functions that return text, with their JSON schemas.

An agent can name only registered trees, not folders. A wrong call returns a line that starts with `error:`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from kernelpro.code_search import queries
from kernelpro.code_search.formatting import MAX_READ_LINES
from kernelpro.code_search.queries import MAX_LIMIT
from kernelpro.code_search.trees import get_tree
from kernelpro.records import BadInput

_P = ParamSpec("_P")
_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class SearchTool:
    """A function with its name, description and JSON schema, as the LLM layer offers it."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., str]


def _answering(function: Callable[_P, str]) -> Callable[_P, str]:
    """Check the arguments against the signature; return errors as text."""
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
                    raise BadInput(f"{name}: contains a zero character")
            return function(*args, **kwargs)
        except BadInput as error:
            return f"error: {error}"

    return answer


@_answering
def search(query: str, tree: str = "cutlass", limit: int = 10) -> str:
    """Passages for a query of words or identifiers, best first."""
    return queries.search(get_tree(tree), query, limit).text


@_answering
def grep(
    pattern: str,
    tree: str = "cutlass",
    regex: bool = False,
    glob: str = "",
    ignore_case: bool = False,
    limit: int = 30,
) -> str:
    """Every line that contains a text, or that matches a regular expression."""
    return queries.grep(get_tree(tree), pattern, regex, glob, ignore_case, limit).text


@_answering
def outline(path: str, tree: str = "cutlass") -> str:
    """The definitions in a file, with their lines."""
    return queries.outline(get_tree(tree), path).text


@_answering
def read(path: str, start: int = 1, end: int = 0, tree: str = "cutlass") -> str:
    """Lines of a file."""
    return queries.read(get_tree(tree), path, start, end).text


@_answering
def definition(symbol: str, tree: str = "cutlass", limit: int = 10) -> str:
    """Where a name is defined."""
    return queries.definition(get_tree(tree), symbol, limit).text


@_answering
def uses(symbol: str, tree: str = "cutlass", limit: int = 20) -> str:
    """Where a name is used."""
    return queries.uses(get_tree(tree), symbol, limit).text


def _schema(*required: str, **properties: tuple[str, str]) -> dict[str, Any]:
    properties["tree"] = ("string", "Name of the tree; default cutlass.")
    schemas: dict[str, dict[str, Any]] = {
        name: {"type": kind, "description": text} for name, (kind, text) in properties.items()
    }
    if "limit" in schemas:
        schemas["limit"] |= {"minimum": 1, "maximum": MAX_LIMIT}
    return {
        "type": "object",
        "properties": schemas,
        "required": list(required),
        "additionalProperties": False,
    }


_LIMIT = ("integer", "How many results.")
TOOLS = (
    SearchTool(
        "search",
        "Find passages about something, best first: words, identifiers or both (`tma load sm90`,"
        " `make_tiled_copy`). Start here.",
        _schema("query", query=("string", "A few words or identifiers."), limit=_LIMIT),
        search,
    ),
    SearchTool(
        "grep",
        "Every line that contains an exact text, or matches a Python regular expression, ordered by path.",
        _schema(
            "pattern",
            pattern=("string", "Text, or a regular expression with regex=true."),
            regex=("boolean", "The pattern is a regular expression."),
            glob=("string", "Only in these files: *.hpp, include/cute/**/*.hpp."),
            ignore_case=("boolean", "Ignore upper and lower case."),
            limit=_LIMIT,
        ),
        grep,
    ),
    SearchTool(
        "outline",
        "The definitions in a file, with line ranges. Use it before you read the file.",
        _schema(
            "path",
            path=(
                "string",
                "A path from the root of the tree. The end of the path suffices if it is unique.",
            ),
        ),
        outline,
    ),
    SearchTool(
        "read",
        f"Lines of a file, at most {MAX_READ_LINES} at once; 100 from start unless end is given.",
        _schema(
            "path",
            path=("string", "File."),
            start=("integer", "First line, from 1."),
            end=("integer", "Last line."),
        ),
        read,
    ),
    SearchTool(
        "definition",
        "Where a function, class, alias or macro is defined, with its signature, including overloads and"
        " specialisations.",
        _schema(
            "symbol",
            symbol=("string", "A name: TiledCopy, cute::make_layout, TiledCopy::get_slice."),
            limit=_LIMIT,
        ),
        definition,
    ),
    SearchTool(
        "uses",
        "Lines that use a name, examples first. Use it to see how others call a function.",
        _schema("symbol", symbol=("string", "A name, in its exact case."), limit=_LIMIT),
        uses,
    ),
)
