"""Code search over CUTLASS / CuTe and any other tree the user names.

trees.py      where trees are, which files they hold, what a path means
scanner.py    what a file defines; chunks.py: where it is cut
words.py      identifiers in parts, stems, synonyms
index.py      the SQLite index of a tree, in the user's cache
ranking.py    a question -> the best chunks; symbols.py: definitions, uses, outlines
grepping.py   exact text and regular expressions; grep_child.py: in a process that can be killed
asking.py     a question to a tree -> rows and text (answers.py)
tools.py      the functions agents call, with their schemas

In come questions, out comes text with paths and lines. Standard library only.
"""

from kernelpro.library.tools import TOOLS, Tool, definition, grep, outline, read, search, uses
from kernelpro.library.trees import NotFound, Tree, cutlass, forget, known, named, register

__all__ = [
    "TOOLS",
    "NotFound",
    "Tool",
    "Tree",
    "cutlass",
    "definition",
    "forget",
    "grep",
    "known",
    "named",
    "outline",
    "read",
    "register",
    "search",
    "uses",
]
