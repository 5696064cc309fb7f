"""`--model replay:RUN`: answers from the transcripts of an earlier run, at no cost."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from kernelpro.llm.question import Exchange, Malformed, ModelError, NotRecorded, Question
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import BadInput

T = TypeVar("T")


class ReplaySource:
    """Returns the recorded answer to the exact question, or else the last answer to its key, with a note."""

    def __init__(self, path: Path) -> None:
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise BadInput(
                f"replay:{path}: no {FILE}; name such a file, or the folder of a run that used a model"
            )
        self.name = f"replay:{path}"
        self._transcripts = Transcripts(file)

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        """Return the recorded answer. Raises NotRecorded if there is none."""
        line = self._transcripts.find(question)
        if line is None and (line := self._transcripts.find_key(question.key)):
            exchange.notes.append(f"{question.key}: the question has changed since its answer was recorded")
        if line is None:
            raise NotRecorded(
                f"{self.name}: no recorded answer to {question.key}; use a model, or replay another run"
            )
        try:
            value = question.answer_format.parse(line.text)
        except Malformed as fault:
            raise ModelError(
                f"{self.name}: the recorded answer to {question.key} does not fit the present format: {fault}"
            ) from None
        exchange.text = line.text
        exchange.messages.extend(line.messages)
        return value
