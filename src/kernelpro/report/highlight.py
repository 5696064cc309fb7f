"""Source code as HTML: Pygments' tokens in spans of four classes. All text is escaped."""

from __future__ import annotations

import re

from markupsafe import Markup, escape
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Number, String, _TokenType

_CLASSES = ((Comment.Preproc, "w"), (Comment, "c"), (String, "s"), (Keyword, "w"), (Number, "n"))
"""CSS classes by token type: comments, strings, keywords and numbers."""
_CPP = re.compile(r"#include|__global__|extern \"C\"|\btemplate\s*<")
"""A Python string that matches is highlighted as C++ or CUDA."""


def highlight(source: str) -> Markup:
    """Python source as HTML; strings that hold C++ or CUDA are highlighted as such."""
    parts: list[Markup] = []
    string = ""
    for kind, text in _lex(PythonLexer, source):
        if kind in String:
            string += text
            continue
        parts += [*_string(string), _span(kind, text)]
        string = ""
    return Markup("").join([*parts, *_string(string)])


def _lex(lexer: type[PythonLexer] | type[CppLexer], source: str) -> list[tuple[_TokenType, str]]:
    return list(lexer(ensurenl=False, stripnl=False).get_tokens(source))


def _string(text: str) -> list[Markup]:
    """A string literal. `text` is the concatenation of the tokens into which Pygments splits it."""
    if not text:
        return []
    if not _CPP.search(text):
        return [_span(String, text)]
    return [_span(kind, part) for kind, part in _lex(CppLexer, text)]


def _span(kind: _TokenType, text: str) -> Markup:
    css = next((name for type, name in _CLASSES if kind in type), "")
    return Markup('<span class="{}">{}</span>').format(css, text) if css else escape(text)


def diff(text: str) -> Markup:
    """A unified diff as HTML, one block per line."""
    lines = []
    for number, line in enumerate(text.split("\n")):
        is_header = number < 2 and line.startswith(("---", "+++"))
        css = "hunk" if is_header or line.startswith("@@") else {"+": "add", "-": "del"}.get(line[:1], "")
        lines.append(Markup('<span class="{}">{}</span>').format(css, line))
    return Markup("").join(lines)
