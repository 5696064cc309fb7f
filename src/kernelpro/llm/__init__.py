"""Language models: any provider, any OpenAI-compatible server, files in a folder, or the transcripts of a
run.

question.py      Question, AnswerFormat, Tool, Reply; exceptions for questions without an answer
by_name.py       `create_model(spec, ...)`: a Model from its name
markdown.py      finds fenced blocks
providers.py     names, keys and prices of providers; conversation.py asks them; failures.py classifies errors
cap.py           the spending cap in dollars and tokens, shared by all roles
transcripts.py   stores every exchange durably; recording.py reuses them; replay.py answers from them
inbox.py         questions and answers as files

Input: questions. Output: parsed and checked values with their cost. Answers are data: this package executes
nothing in them.
"""

from kernelpro.llm.by_name import create_model
from kernelpro.llm.cap import SpendingCap
from kernelpro.llm.prices import Price
from kernelpro.llm.question import (
    AnswerFormat,
    AnswerOutstanding,
    CapReached,
    Malformed,
    Model,
    ModelError,
    NoAnswer,
    Question,
    Reply,
    Tool,
)
from kernelpro.llm.settings import ModelSettings, ReasoningEffort
from kernelpro.llm.transcripts import FILE, Transcripts

__all__ = [
    "FILE",
    "AnswerFormat",
    "AnswerOutstanding",
    "CapReached",
    "Malformed",
    "Model",
    "ModelError",
    "ModelSettings",
    "NoAnswer",
    "Price",
    "Question",
    "ReasoningEffort",
    "Reply",
    "SpendingCap",
    "Tool",
    "Transcripts",
    "create_model",
]
