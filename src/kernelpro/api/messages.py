"""Messages of the Python API: they name Python parameters, not options of the command line."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kernelpro.records import BadInput

P = ParamSpec("P")
T = TypeVar("T")
_NAMES = "author|model|target|mode|policy|pool|price|role|runs-dir|disable-tripwire"
_OPTION = re.compile(rf"`?--({_NAMES})(?: ([^\s;,)`]+))?`?")
_NOT_VALUES = ("and", "or", "as", "to", "for", "uses", "needs")


def in_python(message: str) -> str:
    """A message with the Python parameters that correspond to its command-line options."""

    def keyword(match: re.Match[str]) -> str:
        name, value = match[1], match[2] or ""
        if value in _NOT_VALUES:
            return f"{_keyword(name, '')} {value}"
        end = value[len(value.rstrip(":.")) :]
        return _keyword(name, value.rstrip(":.")) + end

    return _OPTION.sub(keyword, message)


def _keyword(option: str, value: str) -> str:
    match option, value:
        case "price", _:
            model, _, price = value.partition("=")
            return f'prices={{"{model}": "{price}"}}' if value else "prices"
        case "role", _:
            return f'roles={{"{value}": ...}}' if value else "roles"
        case "disable-tripwire", _:
            return f'options=Options(disabled_tripwires=("{value}",))'
        case _:
            name = option.replace("-", "_")
            return f'{name}="{value}"' if value else name


def public(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of the API: BadInput names Python parameters (see `in_python`), and the error for
    an unknown keyword suggests a similar one."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        for keyword in keywords.keys() - {*names}:
            if similar := difflib.get_close_matches(keyword, names, 1):
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {keyword!r}. "
                    f"Did you mean {similar[0]!r}?"
                )
        try:
            return function(*arguments, **keywords)
        except BadInput as error:
            error.args = (in_python(str(error)),)
            raise error.with_traceback(None) from None

    return call
