"""A Model out of a Source: what was answered before is not asked again, and every exchange is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kernelpro.llm.question import Exchange, Malformed, NoAnswer, Outstanding, Question, Reply, Source
from kernelpro.llm.transcripts import Transcripts

T = TypeVar("T")


class Recorded:
    """Without transcripts, nothing is kept and every question is asked. Notes on an answer are told as it comes."""

    def __init__(
        self,
        source: Source,
        transcripts: Transcripts | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._source, self._transcripts, self._tell = source, transcripts, tell

    @property
    def name(self) -> str:
        return self._source.name

    async def ask(self, question: Question[T]) -> Reply[T]:
        """A question that this run has an answer to, word for word, is answered from there, with what it cost then."""
        if earlier := self._earlier(question):
            self._tell_all(earlier.notes)
            return earlier
        exchange = Exchange()
        try:
            value = await self._source.answer(question, exchange)
        except Outstanding:
            raise  # nothing has happened yet
        except BaseException as error:
            if isinstance(error, NoAnswer):
                error.cost, error.messages = exchange.cost, exchange.messages
            self._keep(question, exchange, error)
            raise
        self._keep(question, exchange, None)
        return Reply(value, exchange.text, exchange.cost, exchange.messages, tuple(exchange.notes))

    def _keep(self, question: Question[T], exchange: Exchange, error: BaseException | None) -> None:
        self._tell_all(exchange.notes)
        if self._transcripts and (error is None or exchange.messages):
            self._transcripts.append(self.name, question, exchange, error)

    def _tell_all(self, notes: Iterable[str]) -> None:
        for note in notes:
            self._tell(note)

    def _earlier(self, question: Question[T]) -> Reply[T] | None:
        line = self._transcripts.find(question) if self._transcripts else None
        if line is None:
            return None
        try:
            value = question.form.parse(line.text)
        except Malformed:  # the form's check has changed since
            return None
        note = f"{question.key} was answered before: not asked again"
        return Reply(value, line.text, line.cost, line.messages, (*line.notes, note))
