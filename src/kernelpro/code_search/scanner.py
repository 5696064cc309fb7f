"""Finds the definitions in a file with a small scanner that tolerates any input.

C++ and CUDA:
1. One regular expression finds comments, strings, directives, braces and semicolons.
2. The text between two delimiters is a head. Before `{`, it opens a namespace, class, enum, function or other
   block. Before `;`, it may be an alias or a declaration.
3. Inside a function, only braces count.
4. Every branch of #if / #else starts from the same nesting, because a brace that both branches open is closed
   only once.

Python: `def` and `class` by indentation. Markdown, reST and notebooks: headings.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

KINDS = ("kernel", "function", "struct", "class", "union", "enum", "alias", "macro", "section", "declaration")
"""Kinds of definitions, in the order in which `definition` prefers them."""


@dataclass
class Definition:
    """A definition. Lines count from 1. `depth`: the number of enclosing definitions."""

    name: str
    qualified: str
    kind: str
    start: int
    line: int
    end: int
    depth: int

    @property
    def title(self) -> str:
        """The name with the arguments of a specialisation, without namespaces and enclosing classes."""
        special = "<" in self.qualified and not self.name.startswith("operator")
        return self.qualified[len(self.qualified.split("<")[0]) - len(self.name) :] if special else self.name


def definitions(path: str, text: str) -> list[Definition]:
    """Return the definitions of a file in the order of lines; empty for an unsupported language."""
    extension = os.path.splitext(path)[1].lower()
    if extension in (".py", ".pyi", ".pyx"):
        found = list(_python(text))
    elif extension in (".md", ".rst", ".ipynb"):
        found = list(_headings(text, extension))
    elif extension in (
        ".txt",
        ".cmake",
        ".rs",
        ".go",
        ".jl",
        ".ll",
        ".mlir",
        ".td",
        ".s",
        ".asm",
        ".sass",
        ".ptx",
    ):
        found = []
    else:
        found = _CppScanner(text).scan()
    return sorted(found, key=lambda d: (d.start, -d.end))


_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_DELIMITER = re.compile(
    rf"//[^\n]*|/\*.*?(?:\*/|\Z)|{_STRING}(?:\s*{_STRING})*|'(?:[^'\\\n]|\\.)'"
    r'|R"([^()\\\s]{0,16})\(.*?\)\1"|\#[^\n\\]*(?:\\.[^\n\\]*)*|\{|\}|;',
    re.DOTALL,
)
"""Every alternative starts with a literal character, so that `re` skips the rest quickly."""
_NOISE = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|\#[^\n\\]*(?:\\.[^\n\\]*)*|\[\[.*?\]\]", re.DOTALL)
_DEFINE = re.compile(r"#[ \t]*define[ \t]+(\w+)(\(|[ \t]+\S)")
_CONDITION = re.compile(r"#[ \t]*(if|else|elif|endif)")
_NAMESPACE = re.compile(r"(?:inline\s+)?namespace\b\s*([\w:]*)|extern\s*\"C(?:\+\+)?\"\s*$")
_TYPE = re.compile(
    r"(?:(?:typedef|static|inline|constexpr|const|friend)\s+)*(struct|class|union|enum(?:\s+(?:class|struct))?)\b"
)
_ATTRIBUTES = r"(?:(?:alignas|__align__|CUTLASS_ALIGN\w*|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)\s*)*"
_TYPE_NAME = re.compile(_ATTRIBUTES + r"((?:\w+\s+)*?)([A-Za-z_]\w*)\s*(<|final\b|:|$)")
_CALL = re.compile(
    r"((?:\w+::)*)(operator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+|[\w:<>*& ]+)|~?[A-Za-z_]\w*)\s*(?:<[^()]*>)?\s*\("
)
_ALIAS = re.compile(r"using\s+(\w+)\s*=|typedef\b.*?(\w+)\s*$", re.DOTALL)
_DECLARED = re.compile(
    r"\)\s*(?:(?:const|noexcept|override|final|=\s*(?:0|default|delete)|&&?)\s*|->[^()]*)*$"
)
_MAX_HEAD_CHARACTERS = 2000
"""Longer heads are tables or macro expansions. The limit keeps the scan linear."""
_ANGLE = re.compile(r"[<>()]|->|>=|<=")
_WORDS = """
    if for while switch catch return sizeof alignas alignof decltype noexcept requires static_assert explicit
    asm defined throw new delete assert __attribute__ __launch_bounds__ __align__ __declspec
    __cluster_dims__ __maxnreg__
"""
_NOT_NAMES = frozenset(_WORDS.split())


class _CodeBlock(NamedTuple):
    """An open brace: its scope, name and definition. `resume`: where the head starts if it continues after
    the closing brace, as after `= {}`."""

    scope: str
    name: str = ""
    definition: Definition | None = None
    resume: int = 0


_BODY = _CodeBlock("body")


class _CppScanner:
    def __init__(self, text: str):
        self.text = text
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.found: list[Definition] = []
        self.stack: list[_CodeBlock] = []

    def line(self, offset: int) -> int:
        """Return the line of an offset."""
        return bisect_right(self.newlines, offset - 1) + 1

    def scan(self) -> list[Definition]:
        """Scan the whole file."""
        text, start = self.text, 0
        branches: list[list[_CodeBlock]] = []
        for match in _DELIMITER.finditer(text):
            at = match.start()
            first = text[at]
            if first == "{":
                block = self.open_block(start, at) if self.in_declaration_scope() else _BODY
                self.stack.append(block)
                start = at + 1
            elif first == "}":
                start = at + 1
                if self.stack:
                    block = self.stack.pop()
                    if block.definition:
                        block.definition.end = self.line(at)
                    start = block.resume or start
            elif first == ";":
                if self.in_declaration_scope():
                    self.end_statement(start, at)
                start = at + 1
            elif first == "#":
                self.directive(match, branches)
        last = len(self.newlines) + 1
        for block in self.stack:
            if block.definition and block.definition.end < block.definition.line:
                block.definition.end = last
        return [d for d in self.found if d.end >= d.start]

    def directive(self, match: re.Match[str], branches: list[list[_CodeBlock]]) -> None:
        """Handle #define, and start each branch of a condition from the nesting at its #if."""
        if condition := _CONDITION.match(match.group()):
            if condition[1] == "if":
                branches.append(list(self.stack))
            elif condition[1] == "endif":
                branches[-1:] = []
            elif branches:
                self.stack = list(branches[-1])
        elif define := _DEFINE.match(match.group()):
            line = self.line(match.start())
            self.found.append(
                Definition(define[1], define[1], "macro", line, line, self.line(match.end()), 0)
            )

    def in_declaration_scope(self) -> bool:
        """Whether the scanner is outside function bodies."""
        return not self.stack or self.stack[-1].scope != "body"

    def head(self, start: int, end: int) -> tuple[str, int]:
        """Return the head without comments, attributes and template<...>, and its offset. Blanks replace
        them, so that offsets stay valid."""
        text = self.text[start:end]
        if "/" in text or "#" in text or "[[" in text:
            text = _NOISE.sub(lambda m: " " * len(m.group()), text)
        begin = len(text) - len(text.lstrip())
        rest = begin
        while text.startswith("template", rest):
            depth = 0
            for match in _ANGLE.finditer(text, rest):
                depth += {"<": 1, ">": -1}.get(match.group(), 0)
                if match.group() == ">" and not depth:
                    break
            else:
                break
            rest = match.end() + len(text[match.end() :]) - len(text[match.end() :].lstrip())
        return " " * rest + text[rest:], start + begin

    def add(self, name: str, kind: str, begin: int, at: int, end: int) -> Definition:
        """Record a definition."""
        outer = [block.name for block in self.stack if block.name]
        depth = sum(1 for block in self.stack if block.definition)
        definition = Definition(
            name, "::".join([*outer, name]), kind, self.line(begin), self.line(at), end, depth
        )
        self.found.append(definition)
        return definition

    def open_block(self, start: int, end: int) -> _CodeBlock:
        """Classify the block that a brace opens."""
        head, begin = self.head(start, end)
        bare = head.strip()
        offset = start + len(head) - len(head.lstrip())
        if not bare or len(bare) > _MAX_HEAD_CHARACTERS:
            return _BODY
        if bare[-1] == "=" or bare.count("(") > bare.count(")"):
            return _CodeBlock("body", resume=start)
        if match := _NAMESPACE.match(bare):
            return _CodeBlock("namespace", match[1] or "")
        if (match := _TYPE.match(bare)) and (name := _TYPE_NAME.match(bare[match.end() :].lstrip())):
            kind = match[1].split()[0]
            shift = len(bare) - len(bare[match.end() :].lstrip())
            definition = self.add(name[2], kind, begin, offset + shift + name.start(2), 0)
            if name[3] == "<":
                definition.qualified += " ".join(bare[shift + name.end() - 1 :].split())[:200]
            return _CodeBlock("body" if kind == "enum" else "class", name[2], definition)
        if match := self.call(bare):
            kind = "kernel" if "__global__" in bare else "function"
            called = "".join(match[2].split()) if match[2][-1] in ")]" else match[2]
            definition = self.add(called, kind, begin, offset + match.start(2), 0)
            definition.qualified = (
                definition.qualified.removesuffix(definition.name) + match[1] + definition.name
            )
            return _CodeBlock("body", definition=definition)
        return _BODY

    def call(self, bare: str) -> re.Match[str] | None:
        """Return the first name before a parenthesis that can be that of a function.

        In a class, a name without a type is a constructor or a macro.
        """
        for match in _CALL.finditer(bare):
            if match[2] in _NOT_NAMES:
                continue
            if "=" in bare[: match.start()]:
                return None
            inside = self.stack[-1] if self.stack else _BODY
            special = match[1] or match[2].startswith(("operator", "~")) or match[2] == inside.name
            return None if match.start() == 0 and inside.scope == "class" and not special else match
        return None

    def end_statement(self, start: int, end: int) -> None:
        """Record the alias or declaration that a semicolon ends."""
        head, begin = self.head(start, end)
        bare = head.strip()
        if not bare or len(bare) > _MAX_HEAD_CHARACTERS:
            return
        offset = start + len(head) - len(head.lstrip())
        if match := _ALIAS.match(bare):
            group = 1 if match[1] else 2
            self.add(match[group], "alias", begin, offset + match.start(group), self.line(end))
        elif (
            _DECLARED.search(bare)
            and not bare.startswith(("static_assert", "friend"))
            and (match := self.call(bare))
        ):
            self.add(match[2], "declaration", begin, offset + match.start(2), self.line(end))


_DEF = re.compile(
    r"^([ \t]*)(?:(?:async[ \t]+|cp?)?(def|class)[ \t]+|cdef[ \t]+(class)[ \t]+)(\w+)", re.MULTILINE
)


def _python(text: str) -> Iterator[Definition]:
    lines = text.split("\n")
    indents = [len(line) - len(line.lstrip()) if line.strip() else -1 for line in lines]
    outer: list[tuple[int, Definition]] = []
    row = at = 0
    for match in _DEF.finditer(text):
        row += text.count("\n", at, match.start())
        at = match.start()
        indent = len(match[1])
        end = row + 1
        while end < len(lines) and (
            indents[end] < 0 or indents[end] > indent or lines[end].lstrip()[:1] in (")", "]")
        ):
            end += 1
        while end > row + 1 and indents[end - 1] < 0:
            end -= 1
        start = row
        while start > 0 and lines[start - 1].lstrip().startswith("@") and indents[start - 1] == indent:
            start -= 1
        while outer and outer[-1][0] >= indent:
            outer.pop()
        qualified = ".".join([*(d.name for _, d in outer), match[4]])
        kind = "function" if match[2] == "def" else "class"
        definition = Definition(match[4], qualified, kind, start + 1, row + 1, end, len(outer))
        outer.append((indent, definition))
        yield definition


_HEADING = {
    ".md": re.compile(r"(#{1,6})[ \t]+(.+?)[ \t#]*$"),
    ".ipynb": re.compile(r'\s*"(#{1,6}) (.+?)(?:\\n)?",?$'),
    ".rst": re.compile(r"([=\-~^\"'#*+.])\1{2,}\s*$"),
}


def _headings(text: str, extension: str) -> Iterator[Definition]:
    lines = text.split("\n")
    found: list[tuple[int, str, int]] = []
    fenced, marks = False, ""
    for row, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```") and extension == ".md"
        if fenced or not (match := _HEADING[extension].match(line[:300])):
            continue
        if extension != ".rst":
            found.append((row, match[2], len(match[1])))
        elif row and lines[row - 1].strip() and len(line.strip()) >= len(lines[row - 1].strip()):
            marks += match[1] if match[1] not in marks else ""
            found.append((row - 1, lines[row - 1].strip(), marks.index(match[1])))
    for number, (row, title, level) in enumerate(found):
        end = next((later for later, _, other in found[number + 1 :] if other <= level), len(lines))
        yield Definition(title, title, "section", row + 1, row + 1, max(end, row + 1), max(level - 1, 0))
