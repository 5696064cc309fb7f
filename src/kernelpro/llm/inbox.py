"""`--model inbox:DIR`: a person, a coding agent or a batch system answers. Questions and answers are files.

    DIR/RUN__step-12__plan.md                       the question, written atomically
    DIR/RUN__step-12__plan.answer.md                the answer
    DIR/RUN__step-12__plan.answer.1.bad.md          a malformed answer; the question now shows the fault
    DIR/RUN__step-12__plan.answer.1.stale.md        an answer to an earlier question with another format
    DIR/answered/RUN__step-12__plan.STAMP.md        the question, once answered
    DIR/answered/RUN__step-12__plan.STAMP.answer.md the answer, once accepted

Every name starts with the name of the run, so that runs can share a folder. STAMP is a hash of the key, the
answer format and the run. A question that is asked again after a restart therefore finds its answer even if
its wording has changed; a note reports that. All moves are atomic renames, so that several processes may use
a folder at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path
from typing import Generic, TypeVar

from kernelpro.llm.question import AnswerOutstanding, Exchange, Malformed, Question, Tool
from kernelpro.llm.secrets import redact
from kernelpro.llm.settings import ModelSettings
from kernelpro.records import BadInput, digest

T = TypeVar("T")

_MAX_BYTES = 4 * 2**20
"""Size limit of an answer. The longest kernels have a hundredth of it."""
_SETTLE_SECONDS = 2.0
"""A malformed answer is rejected only after this many seconds without a change, because it may still be
written. A valid answer is accepted at once."""
_HEAD = re.compile(r"<!-- kernelpro question key=(\S+) role=(\S+) stamp=(\S+) content=(\S+) -->")
_FAULT = re.compile(r"<!-- fault -->.*?<!-- end of fault -->\n+", re.DOTALL)


class InboxSource:
    """An AnswerSource whose questions and answers are files in a folder."""

    def __init__(self, folder: Path, settings: ModelSettings) -> None:
        self.name = f"inbox:{folder}"
        self._folder, self._settings = folder, settings
        try:
            (folder / "answered").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"inbox:{folder} cannot be used: {error.strerror}") from None

    async def answer(self, question: Question[T], exchange: Exchange) -> T:
        """Return the answer. Raises AnswerOutstanding if there is none and the settings say not to wait."""
        files = _QuestionFiles(self._folder, question, self._settings.scope)
        reported = ""
        while True:
            answer = files.poll(self._settings.wait)
            if answer:
                value, text, same = answer
                if not same:
                    exchange.notes.append(
                        f"{question.key}: the answer answers an earlier wording of the question"
                    )
                exchange.add("system", redact(question.system))
                exchange.add("user", redact(question.full_prompt))
                exchange.add("assistant", text)
                exchange.text = text
                return value
            state = f"{question.key} waits for {files.answer}" + (f" ({files.fault})" if files.fault else "")
            if not self._settings.wait:
                if files.fault:
                    self._settings.progress(state)
                raise AnswerOutstanding(state, question.key)
            if state != reported:
                self._settings.progress(state)
                reported = state
            await asyncio.sleep(self._settings.poll)


class _QuestionFiles(Generic[T]):
    """The files of one question."""

    def __init__(self, folder: Path, question: Question[T], scope: str) -> None:
        self._question = question
        name = "__".join(filter(None, (scope, *question.key.split("/"))))
        self._stamp = digest(question.key, question.format_hash, scope)[:8]
        self._path = folder / f"{name}.md"
        self.answer = _answer_file(self._path)
        self._done = folder / "answered" / f"{name}.{self._stamp}.md"
        self._archive = _answer_file(self._done)
        self.fault = ""
        """What was wrong with the last answer that this process read; empty if nothing was."""

    def poll(self, watching: bool) -> tuple[T, str, bool] | None:
        """Return the value, its text, and whether it answers this exact wording; None without a valid answer.

        `watching`: whether the caller polls again, so that a malformed answer may still be completed.
        """
        while True:
            with contextlib.suppress(FileNotFoundError):  # another process moved a file: try again
                if self._archive.exists():
                    try:
                        return self._accept()
                    except Malformed as fault:
                        self._reject(self._archive, str(fault))
                self._write_question()
                if self.answer.exists():
                    try:
                        self._question.answer_format.parse(_read(self.answer))
                        os.rename(self.answer, self._archive)
                    except Malformed as fault:
                        if watching and abs(time.time() - self.answer.stat().st_mtime) < _SETTLE_SECONDS:
                            return None
                        self._reject(self.answer, str(fault))
                if not self._archive.exists():
                    return None

    def _accept(self) -> tuple[T, str, bool]:
        text = _read(self._archive)
        value = self._question.answer_format.parse(text)
        if self._read_header(self._path)[0] == self._stamp:
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                os.rename(self._path, self._done)
        return value, text, self._read_header(self._done)[1] in ("", self._question.content_hash)

    def _write_question(self) -> None:
        """Write the question unless it exists, because somebody may be answering it. A question with another
        answer format is replaced."""
        stamp = self._read_header(self._path)[0]
        if stamp == self._stamp:
            return
        if stamp and self.answer.exists():
            os.rename(self.answer, _unused_name(self._path, "answer.{}.stale.md"))
        _write(self._path, _page(self._question, self._stamp, self.answer.name))

    def _reject(self, file: Path, fault: str) -> None:
        """Rename a malformed answer, and say in the question what was wrong with it."""
        bad = _unused_name(self._path, "answer.{}.bad.md")
        os.rename(file, bad)
        self.fault = f"the last answer was malformed: {fault}"
        self._write_question()
        head, _, rest = self._path.read_text().partition("\n")
        advice = f"The answer was renamed to `{bad.name}`. Please send the complete answer again."
        section = f"# What was wrong with the last answer\n\n{redact(fault)}\n\n{advice}"
        rest = _FAULT.sub("", rest, count=1).lstrip("\n")
        _write(self._path, f"{head}\n<!-- fault -->\n{section}\n<!-- end of fault -->\n\n{rest}")

    def _read_header(self, path: Path) -> tuple[str, str]:
        """Return the stamp and the content hash of a question file; empty strings if there is none."""
        try:
            head = _HEAD.match(path.read_text(errors="replace"))
        except (FileNotFoundError, IsADirectoryError):
            return "", ""
        return (head[3], head[4]) if head else ("", "")


def _answer_file(question: Path) -> Path:
    return question.with_name(question.name.removesuffix(".md") + ".answer.md")


def _unused_name(question: Path, pattern: str) -> Path:
    stem, number = question.name.removesuffix(".md"), 1
    while (path := question.with_name(f"{stem}.{pattern.format(number)}")).exists():
        number += 1
    return path


def _read(path: Path) -> str:
    """Read an answer. Raises Malformed if it is not text, FileNotFoundError if it no longer exists."""
    if path.exists() and not path.is_file():
        raise Malformed("the answer is not a regular file")
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except PermissionError:
        raise Malformed("the answer file is not readable") from None
    if len(data) > _MAX_BYTES:
        raise Malformed(f"the answer is larger than {_MAX_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed("the answer is not UTF-8 text") from None


def _write(path: Path, text: str) -> None:
    """Write atomically."""
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
    """Render the question as a page that a person or an agent can answer."""
    head = (
        f"<!-- kernelpro question key={question.key} role={question.role} stamp={stamp}"
        f" content={question.content_hash} -->"
    )
    parts = [
        f"# Question {question.key}",
        (
            f"Role: **{question.role}**. Write the answer to `{answer}` in this folder, in the format"
            " described at the end under *Format of your answer*. Write to another name first (ending in"
            " `.tmp`), then rename it, so that it is never read half written. Once renamed it is final."
        ),
        f"# Context\n\n{question.system.strip()}",
        (
            question.prompt.strip()
            if question.prompt.lstrip().startswith("# ")
            else f"# Task\n\n{question.prompt.strip()}"
        ),
    ]
    if question.tools:
        parts.append(
            "\n".join(["# What you can look up", "", _TOOLS_HERE, *map(_describe_tool, question.tools)])
        )
    parts.append(f"# Format of your answer\n\n{question.answer_format.description.strip()}\n")
    return head + "\n\n" + redact("\n\n".join(parts))


_TOOLS_HERE = (
    "Use a shell in which the command `kernelpro` works. Without one, rely on what you know and use only what"
    " you are sure of."
)


def _describe_tool(tool: Tool) -> str:
    how = f"Run `{tool.shell_command}`." if tool.shell_command else "There is no command for it."
    return f"- **{tool.name}**: {tool.description.strip()} {how}"
