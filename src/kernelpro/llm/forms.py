"""Ready forms of answers. A role's own form is made of these, or of `markdown` and `fill` directly.

Text       any text that is not empty
Code       one fenced block in a given language -> its source
Codes      several fenced blocks, each named by a file name after the language -> sources by name
Header     lines `key: value` at the top -> a dataclass
Data       one fenced block of toml or json -> a dataclass
Sections   a form for each heading -> values by heading

Code never travels inside JSON: models escape it badly.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from kernelpro.llm import markdown
from kernelpro.llm.fill import describe, fill
from kernelpro.llm.question import Form, Malformed

D = TypeVar("D")

_LINE = re.compile(r"[-*]?\s*\**`?([A-Za-z][\w -]*?)`?\**\s*:\**\s*(.*)")
"""`key: value`; models like to put a bullet or emphasis around the key."""
_LONGER = "If the content itself holds a line of three backticks, open and close the block with four."


@dataclass(frozen=True)
class Text:
    description: str = "Plain text."

    def parse(self, text: str) -> str:
        if not text.strip():
            raise Malformed("the answer is empty")
        return text.strip()


@dataclass(frozen=True)
class Code:
    """Exactly one block in this language; blocks in other languages, and prose, may stand around it."""

    language: str

    @property
    def description(self) -> str:
        return f"Exactly one fenced block that opens with ```{self.language} and holds the complete source. {_LONGER}"

    def parse(self, text: str) -> str:
        blocks = markdown.fences(text)
        ours = [block for block in blocks if block.language == self.language]
        if len(ours) != 1:
            seen = ", ".join(f"```{block.language}" for block in blocks) or "no fenced block at all"
            raise Malformed(f"there must be exactly one block that opens with ```{self.language}; the answer has {seen}")
        if not ours[0].body.strip():
            raise Malformed(f"the ```{self.language} block is empty")
        return ours[0].body


@dataclass(frozen=True)
class Codes:
    """Blocks with a name each, like ```python kernel.py; `names` must all be there, others may not."""

    language: str
    names: tuple[str, ...]

    @property
    def description(self) -> str:
        opens = " and ".join(f"```{self.language} {name}" for name in self.names)
        return f"One fenced block each that opens with {opens}, with the complete content of that file. {_LONGER}"

    def parse(self, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for block in markdown.fences(text):
            if block.language == self.language and block.info:
                if block.info in found:
                    raise Malformed(f"there are two blocks for {block.info}")
                found[block.info] = block.body
        missing = [name for name in self.names if not found.get(name, "").strip()]
        unknown = [name for name in found if name not in self.names]
        if missing or unknown:
            faults = [f"no block ```{self.language} {name}" for name in missing] + [f"{name} was not asked for" for name in unknown]
            raise Malformed("; ".join(faults))
        return found


@dataclass(frozen=True)
class Header(Generic[D]):
    """The first lines, up to an empty one, a heading or a block: `key: value` each. What follows them is left alone."""

    kind: type[D]

    @property
    def description(self) -> str:
        lines = [f"{name}: <{words}{'' if needed else '; may be left out'}>" for name, words, needed in describe(self.kind)]
        return "Begin with these lines, then an empty line:\n\n" + "\n".join(lines)

    def parse(self, text: str) -> D:
        data: dict[str, str] = {}
        for line in text.strip().splitlines():
            if not line.strip() or line.lstrip().startswith(("#", "```", "~~~")):
                break
            match = _LINE.fullmatch(line.strip())
            if not match:
                raise Malformed(f"the answer must begin with lines `key: value`; this is none: {line.strip()[:80]!r}")
            name = re.sub(r"[ -]+", "_", match[1].strip().lower())
            if name in data:
                raise Malformed(f"{name} is given twice")
            data[name] = match[2].strip()
        if not data:
            raise Malformed("the answer must begin with lines `key: value`; there are none")
        return fill(self.kind, data, from_words=True)


@dataclass(frozen=True)
class Data(Generic[D]):
    """Exactly one block of toml or json."""

    kind: type[D]
    language: Literal["toml", "json"] = "toml"

    @property
    def description(self) -> str:
        sign = " = " if self.language == "toml" else ": "
        lines = [f"{name}{sign}<{words}{'' if needed else '; may be left out'}>" for name, words, needed in describe(self.kind)]
        return f"Exactly one fenced block that opens with ```{self.language} and gives:\n\n" + "\n".join(lines)

    def parse(self, text: str) -> D:
        source = Code(self.language).parse(text)
        try:
            data = tomllib.loads(source) if self.language == "toml" else json.loads(source)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the ```{self.language} block cannot be read: {error}") from None
        if not isinstance(data, dict):
            raise Malformed(f"the ```{self.language} block must hold an object")
        return fill(self.kind, data)


@dataclass(frozen=True)
class Sections:
    """A form for each heading, as a level-2 heading in this order; headings that are not asked for are left alone."""

    forms: Mapping[str, Form[Any]]
    optional: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        parts = []
        for name, form in self.forms.items():
            note = " (this section may be left out)" if name in self.optional else ""
            parts.append(f"## {name}\n{form.description}{note}")
        return "Sections with exactly these headings:\n\n" + "\n\n".join(parts)

    def parse(self, text: str) -> dict[str, Any]:
        """Values by the headings' names; an optional section that is not there is not in it."""
        found, values, faults = markdown.sections(text), dict[str, Any](), list[str]()
        for name, form in self.forms.items():
            body = found.get(markdown.plain(name))
            if body is None:
                if name not in self.optional:
                    faults.append(f"the section `## {name}` is missing")
                continue
            try:
                values[name] = form.parse(body)
            except Malformed as fault:
                faults.append(f"in the section {name}: {fault}")
        if faults:
            raise Malformed("; ".join(faults))
        return values
