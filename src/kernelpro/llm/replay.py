"""Answers from the transcripts of an earlier run, at no cost."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from kernelpro.llm.question import Exchange, Malformed, ModelError, NotRecorded, Question
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import BadInput

T = TypeVar("T")


class Replay:
    """The very question first; else the last answer to its key, with a note that the wording has changed."""

    def __init__(self, path: Path) -> None:
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise BadInput(
                f"replay:{path}: there is no {FILE}; give such a file, or the folder of a run that asked a model"
            )
        self.name = f"replay:{path}"
        self._transcripts = Transcripts(file)

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        line = self._transcripts.find(question)
        if line is None and (line := self._transcripts.find_key(question.key)):
            exchange.notes.append(f"{question.key}: the question has changed since its answer was recorded")
        if line is None:
            raise NotRecorded(
                f"{self.name}: no answer to {question.key} was recorded; ask a model, or replay the run that had it"
            )
        try:
            value = question.form.parse(line.text)
        except Malformed as fault:
            raise ModelError(
                f"{self.name}: the recorded answer to {question.key} does not fit the question now: {fault}"
            ) from None
        exchange.text = line.text
        exchange.messages.extend(line.messages)
        return value
