"""Answer formats of the agents: what each role must send, and how its answer is parsed.

An answer is Markdown: a few `key: value` lines, then fenced blocks. Code is in fenced blocks only. For an
answer that does not fit, the parser raises BadInput, and its message goes back to the model.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from kernelpro.authors.anchors import AnchoredSource, Quote, locate_anchors
from kernelpro.authors.team.expectation import parse_speedup
from kernelpro.llm.markdown import fenced_blocks
from kernelpro.records import BadInput

_HEADER = re.compile(r"[ \t*_-]*(?P<key>[A-Za-z][A-Za-z ]{1,24}?)[*_ \t]*:[*_]*[ \t]*(?P<value>.*)")
_LONGEST_SPANS = 24_000
"""Maximum characters in the spans of a plan: half of what a coder sees of a file (sections.py)."""


def header_fields(text: str) -> dict[str, str]:
    """Return the `key: value` lines outside fences, with lower-case keys. The first of equal keys counts."""
    lines, inside = text.replace("\r\n", "\n").split("\n"), set()
    for fence in fenced_blocks(text):
        inside |= set(range(fence.line - 1, fence.line + fence.body.count("\n") + 1))
    fields: dict[str, str] = {}
    for number, line in enumerate(lines):
        if number not in inside and (match := _HEADER.fullmatch(line)):
            fields.setdefault(match["key"].strip().lower(), match["value"].strip())
    return fields


def _required(fields: dict[str, str], *names: str) -> None:
    if missing := [name for name in names if not fields.get(name)]:
        raise BadInput(
            f"the line `{missing[0]}: ...` is missing"
            + (f", and {' and '.join(missing[1:])} too" if missing[1:] else "")
        )


def whole_file(text: str) -> str:
    """Return the source of the candidate: the largest Python block."""
    blocks = [fence.body for fence in fenced_blocks(text) if fence.language in ("", "python")]
    if not blocks:
        raise BadInput("no fenced block contains the file: put it between ```python and ```")
    source = max(blocks, key=len)
    parsed = _parsed(source, "the file is not Python")
    if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in parsed.body):
        raise BadInput("the file defines no top-level class ModelNew")
    return source


def _parsed(source: str, complaint: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise BadInput(f"{complaint}: line {error.lineno}: {error.msg}") from None
    except (MemoryError, RecursionError, ValueError) as error:  # nested too deeply; a zero byte
        raise BadInput(f"{complaint}: {str(error) or 'nested too deeply'}") from None


@dataclass(frozen=True)
class DesignAnswer:
    """A complete kernel with its plan."""

    plan: str
    hypothesis: str
    source: str


class DesignFormat:
    """Format of a design: plan, hypothesis, file."""

    description = """Send two lines, then the complete file in one fenced block:

plan: <the design on one line: algorithm, kernels, data movement>
hypothesis: <on one line: what will limit the kernel, and the time in ms you expect>

```python
<the complete file, with class ModelNew>
```"""

    def parse(self, text: str) -> DesignAnswer:
        """Parse an answer. Raises BadInput if it does not fit."""
        fields = header_fields(text)
        _required(fields, "plan", "hypothesis")
        return DesignAnswer(fields["plan"], fields["hypothesis"], whole_file(text))


@dataclass(frozen=True)
class PlanAnswer:
    """One transformation of a kernel."""

    transformation: str
    hypothesis: str
    expected_speedup: float
    """Speed-up over the present kernel."""
    finding: str
    """The diagnostic whose advice the plan follows; empty if none."""
    source: AnchoredSource | None
    """The file with the spans to change; None for a rewrite."""
    language: str
    instructions: str
    """The answer without its anchor blocks: the coder sees the marked file instead."""


class PlanFormat:
    """Format of a plan: transformation, hypothesis, expected speed-up, instructions, anchors."""

    _DESCRIPTION = """Send these lines, then instructions, then (for an edit) one fenced block for each span:

transformation: <the change, in one sentence>
hypothesis: <which number should change, from what to what, and why>
expected: <the speed-up over the kernel above, such as 1.4x>
finding: <name of the finding you act on, or none>
kind: <edit or rewrite>
language: <LANGUAGES>

<Instructions for the coder: what to write in each span or in the file; sizes, layouts, edge cases. Use fenced
blocks for code.>

A rewrite has no spans. For an edit, quote each span by its first and last line, exactly as they stand in the
file (one line if the span is a single line). The first line must be unique in the file. The span ends at the
next line that equals the last line:

```anchor NAME
<first line of the span>
...
<last line of the span>
```"""

    def __init__(self, source: str, language: str, languages: tuple[str, ...]):
        self._source, self._language, self._languages = source, language, languages
        choices = (
            f"{' or '.join(self._languages)}; the present one unless you rewrite"
            if len(self._languages) > 1
            else self._languages[0]
        )
        self.description = self._DESCRIPTION.replace("LANGUAGES", choices)

    def parse(self, text: str) -> PlanAnswer:
        """Parse an answer and locate its anchors. Raises BadInput if it does not fit."""
        fields = header_fields(text)
        _required(fields, "transformation", "hypothesis", "expected", "kind")
        expected_speedup = parse_speedup(fields["expected"])
        kind = fields["kind"].lower().strip("`. ")
        if kind not in ("edit", "rewrite"):
            raise BadInput(f"`kind: {fields['kind']}`: choose edit or rewrite")
        language = fields.get("language", self._language).lower().strip("`. ") or self._language
        if language not in (*self._languages, self._language, "torch"):
            raise BadInput(f"`language: {language}`: choose {' or '.join(self._languages)}")
        finding = fields.get("finding", "").strip("`. ")
        anchored = locate_anchors(self._source, _quotes(text)) if kind == "edit" else None
        if anchored and anchored.characters > _LONGEST_SPANS:
            raise BadInput(
                f"the spans hold {anchored.characters} characters, and the limit is {_LONGEST_SPANS}: "
                "choose smaller spans, or plan a rewrite"
            )
        return PlanAnswer(
            fields["transformation"],
            fields["hypothesis"],
            expected_speedup,
            "" if finding.lower() == "none" else finding,
            anchored,
            language,
            _without_anchor_blocks(text),
        )


def _without_anchor_blocks(text: str) -> str:
    """Return the text without its ```anchor blocks."""
    lines = text.replace("\r\n", "\n").split("\n")
    for fence in reversed(fenced_blocks(text)):
        if fence.language == "anchor":
            del lines[fence.line - 1 : fence.line + fence.body.count("\n") + 1]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _quotes(text: str, opening: str = "anchor") -> list[Quote]:
    quotes = []
    for fence in fenced_blocks(text):
        if fence.language == opening:
            lines = [line for line in fence.body.splitlines() if line.strip() and line.strip() != "..."]
            if not fence.info or not lines:
                raise BadInput(f"a block ```{opening} needs a name and at least one quoted line")
            quotes.append(Quote(fence.info, lines[0], lines[-1]))
    if not quotes:
        raise BadInput("an edit needs at least one block ```anchor NAME with the quoted lines of the span")
    return quotes


class CodeFormat:
    """Format of code: new text for every anchor, or a complete file if there are none."""

    def __init__(self, anchored: AnchoredSource | None):
        self._anchored = anchored
        names = ", ".join(span.name for span in anchored.spans) if anchored else ""
        self.description = (
            f"""For every span ({names}) send one fenced block with its new text,
with the indentation of the file, and nothing else:

```python NAME
<the new text of the span>
```"""
            if anchored
            else """Send the complete file in one fenced block:

```python
<the complete file, with class ModelNew>
```"""
        )

    def parse(self, text: str) -> str:
        """Parse an answer; returns the complete source. Raises BadInput if it does not fit."""
        if self._anchored is None:
            return whole_file(text)
        named: dict[str, str] = {}
        for fence in fenced_blocks(text):
            if fence.language == "python" and fence.info:
                if fence.info in named:
                    raise BadInput(f"two blocks are named ```python {fence.info}: send one for each span")
                named[fence.info] = fence.body
        source = (
            self._anchored.fill(named)
            if named
            else self._anchored.fill(self._anchored.check(whole_file(text)))
        )
        _parsed(source, "with these spans the file is not Python")
        return source


@dataclass(frozen=True)
class DebugAnswer:
    """A repaired kernel with the cause of its failure."""

    diagnosis: str
    source: str


class DebugFormat:
    """Format of a fix: diagnosis, then find and replace blocks or the complete file."""

    description = """Send one line, then the fix. For each place to change, send one block that quotes its
lines and one with the new text:

diagnosis: <the cause of the failure, in one sentence>

```find NAME
<first line of the place, exactly as it stands>
...
<last line>
```
```python NAME
<the new text, with the indentation of the file>
```

If most of the file must change, send the complete file in one ```python block instead."""

    def __init__(self, source: str):
        self._source = source

    def parse(self, text: str) -> DebugAnswer:
        """Parse an answer and apply its changes. Raises BadInput if it does not fit."""
        fields = header_fields(text)
        _required(fields, "diagnosis")
        if not any(fence.language == "find" for fence in fenced_blocks(text)):
            return DebugAnswer(fields["diagnosis"], whole_file(text))
        return DebugAnswer(
            fields["diagnosis"], CodeFormat(locate_anchors(self._source, _quotes(text, "find"))).parse(text)
        )
