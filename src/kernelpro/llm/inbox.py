"""`inbox:DIR`: a person, a coding agent or a batch system is the model. Questions are files, answers are files beside them.

    DIR/RUN__step-12__plan.md                 the question: written at once, in full
    DIR/RUN__step-12__plan.answer.md          the answer: put there by whoever answers
    DIR/RUN__step-12__plan.answer.1.bad.md    an answer without the form asked for; the question says on top what was wrong
    DIR/RUN__step-12__plan.answer.1.stale.md  an answer to a question of this name whose form was another
    DIR/answered/RUN__step-12__plan.<stamp>.md     the question, and ...
    DIR/answered/RUN__step-12__plan.<stamp>.answer.md   ... the answer, once taken

The run's name is part of every name, so that runs share a folder without touching each other's files. The stamp is made of
the key, the form and the run: asked again after a restart, a question finds its answer, even if its wording has changed
since (a note says so). All moves are atomic renames, so several processes may look at a folder at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path
from typing import Generic, TypeVar

from kernelpro.llm.question import Exchange, Malformed, Outstanding, Question, Tool
from kernelpro.llm.secrets import redact
from kernelpro.llm.settings import Settings
from kernelpro.records import BadInput, digest

T = TypeVar("T")

_LARGEST = 4 * 2**20
"""Bytes of an answer; the longest kernels have a hundredth of it."""
_SETTLED = 2.0
"""Seconds after which a file that is being watched counts as written to its end. One that is complete is taken at once."""
_HEAD = re.compile(r"<!-- kernelpro question key=(\S+) role=(\S+) stamp=(\S+) content=(\S+) -->")
_FAULT = re.compile(r"<!-- fault -->.*?<!-- end of fault -->\n+", re.DOTALL)


class Inbox:
    def __init__(self, folder: Path, settings: Settings) -> None:
        self.name = f"inbox:{folder}"
        self._folder, self._settings = folder, settings
        try:
            (folder / "answered").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"inbox:{folder} cannot be used: {error.strerror}") from None

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        """Raises Outstanding where the settings say not to wait."""
        place = _Place(self._folder, question, self._settings.scope)
        told = ""
        while True:
            found = place.look(self._settings.wait)
            if found:
                value, text, same = found
                if not same:
                    exchange.notes.append(
                        f"{question.key}: the answer is to an earlier wording of the question"
                    )
                exchange.add("system", redact(question.system))
                exchange.add("user", redact(question.task))
                exchange.add("assistant", text)
                exchange.text = text
                return value
            state = f"{question.key} waits for {place.answer}" + (f" ({place.fault})" if place.fault else "")
            if not self._settings.wait:
                if place.fault:
                    self._settings.progress(state)
                raise Outstanding(state, question.key)
            if state != told:
                self._settings.progress(state)
                told = state
            await asyncio.sleep(self._settings.poll)


class _Place(Generic[T]):
    """One question's files."""

    def __init__(self, folder: Path, question: Question[T], scope: str) -> None:
        self._question = question
        name = "__".join(filter(None, (scope, *question.key.split("/"))))
        self._stamp = digest(question.key, question.shape, scope)[:8]
        self._path = folder / f"{name}.md"
        self.answer = _answer_file(self._path)
        self._done = folder / "answered" / f"{name}.{self._stamp}.md"
        self._archive = _answer_file(self._done)
        self.fault = ""
        """What was wrong with the last answer that this process looked at."""

    def look(self, watching: bool) -> tuple[T, str, bool] | None:
        """The value, its text, and whether it answers this very wording; None while there is no good answer."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # another process moved a file: look again
                if self._archive.exists():
                    try:
                        return self._take()
                    except Malformed as fault:
                        self._refuse(self._archive, str(fault))
                self._put_question()
                if self.answer.exists():
                    try:
                        self._question.form.parse(_read(self.answer))
                        os.rename(self.answer, self._archive)
                    except Malformed as fault:
                        if watching and time.time() - self.answer.stat().st_mtime < _SETTLED:
                            return None
                        self._refuse(self.answer, str(fault))
                if not self._archive.exists():
                    return None

    def _take(self) -> tuple[T, str, bool]:
        text = _read(self._archive)
        value = self._question.form.parse(text)
        if self._head_of(self._path)[0] == self._stamp:
            with contextlib.suppress(FileNotFoundError):  # another process did
                os.rename(self._path, self._done)
        return value, text, self._head_of(self._done)[1] in ("", self._question.content)

    def _put_question(self) -> None:
        """The question stays as it was first put: somebody may be answering it. One of another form is replaced."""
        stamp = self._head_of(self._path)[0]
        if stamp == self._stamp:
            return
        if stamp and self.answer.exists():
            os.rename(self.answer, _free(self._path, "answer.{}.stale.md"))
        _write(self._path, _page(self._question, self._stamp, self.answer.name))

    def _refuse(self, file: Path, fault: str) -> None:
        """Set a bad answer aside, and say in the question what was wrong with it."""
        bad = _free(self._path, "answer.{}.bad.md")
        os.rename(file, bad)
        self.fault = f"the last answer was malformed: {fault}"
        self._put_question()
        head, _, rest = self._path.read_text().partition("\n")
        kept = f"It is kept as `{bad.name}`. Please answer again, in full."
        section = f"# What was wrong with the last answer\n\n{redact(fault)}\n\n{kept}"
        rest = _FAULT.sub("", rest, count=1).lstrip("\n")
        _write(self._path, f"{head}\n<!-- fault -->\n{section}\n<!-- end of fault -->\n\n{rest}")

    def _head_of(self, path: Path) -> tuple[str, str]:
        """Stamp and content of a question's file; empty where there is none."""
        try:
            head = _HEAD.match(path.read_text(errors="replace"))
        except (FileNotFoundError, IsADirectoryError):
            return "", ""
        return (head[3], head[4]) if head else ("", "")


def _answer_file(question: Path) -> Path:
    return question.with_name(question.name.removesuffix(".md") + ".answer.md")


def _free(question: Path, pattern: str) -> Path:
    stem, number = question.name.removesuffix(".md"), 1
    while (path := question.with_name(f"{stem}.{pattern.format(number)}")).exists():
        number += 1
    return path


def _read(path: Path) -> str:
    """Raises Malformed where it is no text, FileNotFoundError where it is gone."""
    if path.exists() and not path.is_file():
        raise Malformed("the answer is a folder or the like, not a file")
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except PermissionError:
        raise Malformed("the answer may not be read by whoever runs this") from None
    if len(data) > _LARGEST:
        raise Malformed(f"the answer is larger than {_LARGEST // 2**20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed("the answer is not UTF-8 text") from None


def _write(path: Path, text: str) -> None:
    """In full or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(hidden, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def _page(question: Question[T], stamp: str, answer: str) -> str:
    """The question as a page that a person can read and answer."""
    head = f"<!-- kernelpro question key={question.key} role={question.role} stamp={stamp} content={question.content} -->"
    parts = [
        f"# Question {question.key}",
        f"Role: **{question.role}**. Write the answer to `{answer}` in this folder, as described at the end under "
        "*The form of your answer*. Write it under another name first (`.tmp` at the end) and rename it, so that it is never read "
        "half written; once renamed it is final.",
        f"# Context\n\n{question.system.strip()}",
        question.prompt.strip()
        if question.prompt.lstrip().startswith("# ")
        else f"# Task\n\n{question.prompt.strip()}",
    ]
    if question.tools:
        parts.append("\n".join(["# What you may look up", "", _TOOLS_HERE, *map(_in_words, question.tools)]))
    parts.append(f"# The form of your answer\n\n{question.form.description.strip()}\n")
    return head + "\n\n" + redact("\n\n".join(parts))


_TOOLS_HERE = (
    "In a shell in which `kernelpro` runs, as that of whoever started this run; where there is none, write from what you know "
    "and keep to what you are sure of."
)


def _in_words(tool: Tool) -> str:
    how = (
        f"Run `{tool.command}`."
        if tool.command
        else "There is no command for it: use what you have, or do without."
    )
    return f"- **{tool.name}**: {tool.description.strip()} {how}"
