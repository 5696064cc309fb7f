"""Two simple answer formats for tests: any text, and one fenced block of code."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.llm import markdown
from kernelpro.llm.question import Malformed

_LONGER = "If the content itself holds a line of three backticks, open and close the block with four."


@dataclass(frozen=True)
class Text:
    """Any text that is not empty."""

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
        return (
            f"Exactly one fenced block that opens with ```{self.language} and holds the complete source."
            f" {_LONGER}"
        )

    def parse(self, text: str) -> str:
        blocks = markdown.fenced_blocks(text)
        ours = [block for block in blocks if block.language == self.language]
        if len(ours) != 1:
            seen = ", ".join(f"```{block.language}" for block in blocks) or "no fenced block at all"
            raise Malformed(
                f"there must be exactly one block that opens with ```{self.language}; the answer has {seen}"
            )
        if not ours[0].body.strip():
            raise Malformed(f"the ```{self.language} block is empty")
        return ours[0].body
