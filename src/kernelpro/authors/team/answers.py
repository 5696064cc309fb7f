"""The forms of the team's answers: what is asked for, in words, and how it is read.

Answers are Markdown: a few `key: value` lines, then fenced blocks. Code stands in fences and nowhere else. Whatever does not
fit raises BadInput with what is wrong, which goes back to whoever answered.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from kernelpro.authors.anchors import Anchored, Quote, place
from kernelpro.authors.team.expectation import times_as_fast
from kernelpro.llm.markdown import fences
from kernelpro.records import BadInput

_HEADER = re.compile(r"[ \t*_-]*(?P<key>[A-Za-z][A-Za-z ]{1,24}?)[*_ \t]*:[*_]*[ \t]*(?P<value>.*)")
_LONGEST_SPANS = 24_000
"""Characters that a plan may have changed in an edit: half of what a coder is shown of a file (windows.py)."""


def header(text: str) -> dict[str, str]:
    """`key: value` lines outside fences, keys in lower case; the first of a key counts."""
    lines, inside = text.replace("\r\n", "\n").split("\n"), set()
    for fence in fences(text):
        inside |= set(range(fence.line - 1, fence.line + fence.body.count("\n") + 1))
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        if number not in inside and (match := _HEADER.fullmatch(line)):
            found.setdefault(match["key"].strip().lower(), match["value"].strip())
    return found


def _required(fields: dict[str, str], *names: str) -> None:
    if missing := [name for name in names if not fields.get(name)]:
        raise BadInput(
            f"the line `{missing[0]}: ...` is missing"
            + (f", and {' and '.join(missing[1:])} too" if missing[1:] else "")
        )


def whole_file(text: str) -> str:
    """The one block that is a candidate; the largest Python block where there are several."""
    found = [fence.body for fence in fences(text) if fence.language in ("", "python")]
    if not found:
        raise BadInput("there is no fenced block with the file: put it between ```python and ```")
    source = max(found, key=len)
    parsed = _parsed(source, "the file is not Python")
    if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in parsed.body):
        raise BadInput("the file defines no class ModelNew at top level")
    return source


def _parsed(source: str, complaint: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise BadInput(f"{complaint}: line {error.lineno}: {error.msg}") from None
    except (MemoryError, RecursionError, ValueError) as error:  # nested too deeply; a zero byte
        raise BadInput(f"{complaint}: {str(error) or 'it is nested too deeply'}") from None


@dataclass(frozen=True)
class Designed:
    plan: str
    hypothesis: str
    source: str


class DesignForm:
    description = """First two lines, then the complete file in one fenced block:

plan: <the design on one line, however long: algorithm, kernels, data movement>
hypothesis: <on one line: what will limit it, and the time in ms that you expect>

```python
<the whole file, with class ModelNew>
```"""

    def parse(self, text: str) -> Designed:
        fields = header(text)
        _required(fields, "plan", "hypothesis")
        return Designed(fields["plan"], fields["hypothesis"], whole_file(text))


@dataclass(frozen=True)
class Planned:
    transformation: str
    hypothesis: str
    promised: float
    """Times as fast as now."""
    finding: str
    """The tool whose advice it takes; empty where none."""
    anchored: Anchored | None
    """None: a rewrite."""
    language: str
    instructions: str
    """The answer without its quotations, for whoever writes the code: the file he sees is marked."""


class PlanForm:
    _DESCRIPTION = """Lines first, then instructions, then (for an edit) one fenced block for each span that must change:

transformation: <one sentence: the one change>
hypothesis: <which number should move, from what to what, and why>
expected: <how many times as fast as the kernel above, such as 1.4x>
finding: <name of the finding you act on, or none>
kind: <edit or rewrite>
language: <LANGUAGES>

<Instructions for the coder: what to write in each span, or in the file; sizes, layouts, edge cases; pieces of code in fenced
blocks where they say it best.>

A rewrite has no spans. For an edit, quote each span by its first and last line exactly as they stand in the file (one line
where the span is a single line). The first must occur once in the file; the span ends at the next line that reads like the last:

```anchor NAME
<first line of the span>
...
<last line of the span>
```"""

    def __init__(self, source: str, language: str, known: tuple[str, ...]):
        self._source, self._language, self._known = source, language, known
        several = (
            f"{' or '.join(self._known)}; as it is unless you rewrite"
            if len(self._known) > 1
            else self._known[0]
        )
        self.description = self._DESCRIPTION.replace("LANGUAGES", several)

    def parse(self, text: str) -> Planned:
        fields = header(text)
        _required(fields, "transformation", "hypothesis", "expected", "kind")
        promised = times_as_fast(fields["expected"])
        kind = fields["kind"].lower().strip("`. ")
        if kind not in ("edit", "rewrite"):
            raise BadInput(f"`kind: {fields['kind']}`: say edit or rewrite")
        language = fields.get("language", self._language).lower().strip("`. ") or self._language
        if language not in (*self._known, self._language, "torch"):
            raise BadInput(f"`language: {language}`: here it is {' or '.join(self._known)}")
        finding = fields.get("finding", "").strip("`. ")
        anchored = place(self._source, _quotes(text)) if kind == "edit" else None
        if anchored and anchored.characters > _LONGEST_SPANS:
            told = f"hold {anchored.characters} characters, and the coder is shown {_LONGEST_SPANS}"
            raise BadInput(f"the spans {told}: name smaller ones, or plan a rewrite")
        told = "" if finding.lower() == "none" else finding
        return Planned(
            fields["transformation"],
            fields["hypothesis"],
            promised,
            told,
            anchored,
            language,
            _unquoted(text),
        )


def _unquoted(text: str) -> str:
    """Without the blocks ```anchor."""
    lines = text.replace("\r\n", "\n").split("\n")
    for fence in reversed(fences(text)):
        if fence.language == "anchor":
            del lines[fence.line - 1 : fence.line + fence.body.count("\n") + 1]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _quotes(text: str, opening: str = "anchor") -> list[Quote]:
    found = []
    for fence in fences(text):
        if fence.language == opening:
            lines = [line for line in fence.body.splitlines() if line.strip() and line.strip() != "..."]
            if not fence.info or not lines:
                raise BadInput(f"a block ```{opening} needs a name and at least one quoted line")
            found.append(Quote(fence.info, lines[0], lines[-1]))
    if not found:
        raise BadInput("an edit needs at least one block ```anchor NAME with the quoted lines of the span")
    return found


class CodeForm:
    """New text for every anchor; a whole file where there are none."""

    def __init__(self, anchored: Anchored | None):
        self._anchored = anchored
        names = ", ".join(span.name for span in anchored.spans) if anchored else ""
        self.description = (
            f"""For every span ({names}) one fenced block with its new text, indented as it must stand, and nothing else:

```python NAME
<the new text of the span>
```"""
            if anchored
            else """The complete file in one fenced block:

```python
<the whole file, with class ModelNew>
```"""
        )

    def parse(self, text: str) -> str:
        if self._anchored is None:
            return whole_file(text)
        named: dict[str, str] = {}
        for fence in fences(text):
            if fence.language == "python" and fence.info:
                if fence.info in named:
                    raise BadInput(f"there are two blocks ```python {fence.info}: send one for each span")
                named[fence.info] = fence.body
        source = (
            self._anchored.fill(named)
            if named
            else self._anchored.fill(self._anchored.check(whole_file(text)))
        )
        _parsed(source, "with these spans the file is not Python")
        return source


@dataclass(frozen=True)
class Mended:
    diagnosis: str
    source: str


class DebugForm:
    description = """One line, then the fix: for each place that changes a block with its lines, and one with their new text:

diagnosis: <the cause of the failure, in one sentence>

```find NAME
<first line of the place, exactly as it stands>
...
<last line>
```
```python NAME
<its new text, indented as it must stand>
```

Where most of the file must change, send the complete file in one ```python block instead."""

    def __init__(self, source: str):
        self._source = source

    def parse(self, text: str) -> Mended:
        fields = header(text)
        _required(fields, "diagnosis")
        if not any(fence.language == "find" for fence in fences(text)):
            return Mended(fields["diagnosis"], whole_file(text))
        return Mended(fields["diagnosis"], CodeForm(place(self._source, _quotes(text, "find"))).parse(text))
