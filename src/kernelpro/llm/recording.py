"""Turns an AnswerSource into a Model that reuses recorded answers and stores every exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kernelpro.llm.question import (
    AnswerOutstanding,
    AnswerSource,
    Exchange,
    Malformed,
    NoAnswer,
    Question,
    Reply,
)
from kernelpro.llm.transcripts import Transcripts

T = TypeVar("T")


class RecordingModel:
    """A Model that records. Without transcripts, it asks every question and stores nothing.

    `report` is called with each note on an answer.
    """

    def __init__(
        self,
        source: AnswerSource,
        transcripts: Transcripts | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._source, self._transcripts, self._report = source, transcripts, report

    @property
    def name(self) -> str:
        """The source's name."""
        return self._source.name

    async def ask(self, question: Question[T]) -> Reply[T]:
        """Return the recorded answer to this exact question, with its cost, or ask the source."""
        if earlier := self._recorded_reply(question):
            self._report_all(earlier.notes)
            return earlier
        exchange = Exchange()
        try:
            value = await self._source.answer(question, exchange)
        except AnswerOutstanding:
            raise  # there is nothing to record
        except BaseException as error:
            if isinstance(error, NoAnswer):
                error.cost, error.messages = exchange.cost, exchange.messages
            self._record(question, exchange, error)
            raise
        self._record(question, exchange, None)
        return Reply(value, exchange.text, exchange.cost, exchange.messages, tuple(exchange.notes))

    def _record(self, question: Question[T], exchange: Exchange, error: BaseException | None) -> None:
        self._report_all(exchange.notes)
        if self._transcripts and (error is None or exchange.messages):
            self._transcripts.append(self.name, question, exchange, error)

    def _report_all(self, notes: Iterable[str]) -> None:
        for note in notes:
            self._report(note)

    def _recorded_reply(self, question: Question[T]) -> Reply[T] | None:
        line = self._transcripts.find(question) if self._transcripts else None
        if line is None:
            return None
        try:
            value = question.answer_format.parse(line.text)
        except Malformed:  # the format has changed since then
            return None
        note = f"{question.key} was answered before; the recorded answer is used"
        return Reply(value, line.text, line.cost, line.messages, (*line.notes, note))
