"""Who can be the LLM: any provider, any OpenAI-compatible server, files in a folder, or the transcripts of an earlier run.

question.py      Question, Form, Tool, Reply; ModelError, CapReached, Outstanding
by_name.py       `model(spec, ...)`: a Model from its name
forms.py         two ready forms of answers; markdown.py finds fenced blocks
providers.py     names, keys and prices of providers; conversation.py asks them; failures.py says what went wrong
cap.py           the purse: a cap in money and tokens for all roles together
transcripts.py   every exchange, durably; recorded.py keeps and reuses them; replay.py answers from them
inbox.py         questions and answers as files

In come questions, out come checked values with what they cost. Answers are data: nothing in them is run or followed here.
"""

from kernelpro.llm.by_name import model
from kernelpro.llm.cap import Purse
from kernelpro.llm.prices import Price
from kernelpro.llm.question import (
    CapReached,
    Form,
    Malformed,
    Model,
    ModelError,
    NoAnswer,
    Outstanding,
    Question,
    Reply,
    Tool,
)
from kernelpro.llm.settings import Effort, Settings
from kernelpro.llm.transcripts import FILE, Transcripts

__all__ = [
    "FILE",
    "CapReached",
    "Effort",
    "Form",
    "Malformed",
    "Model",
    "ModelError",
    "NoAnswer",
    "Outstanding",
    "Price",
    "Purse",
    "Question",
    "Reply",
    "Settings",
    "Tool",
    "Transcripts",
    "model",
]
