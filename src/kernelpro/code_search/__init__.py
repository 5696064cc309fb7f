"""Code search over CUTLASS / CuTe and other source trees that the user registers.

trees.py         source trees: location, files, path lookup
scanner.py       finds the definitions in a file; chunks.py splits the file
tokenizer.py     splits identifiers into parts, stems them, replaces synonyms
index.py         the SQLite full-text index of a tree, in the user's cache
ranking.py       finds the best chunks for a query; symbols.py finds definitions, uses and outlines
line_search.py   exact text and regular expressions, run by grep_process.py, a process that can be killed
queries.py       the queries; formatting.py formats their results as text
tools.py         the functions that agents call, with their JSON schemas

Input: queries. Output: text with paths and line numbers. Uses only the standard library.
"""

from kernelpro.code_search.tools import TOOLS, SearchTool, definition, grep, outline, read, search, uses
from kernelpro.code_search.trees import NotFound, SourceTree, cutlass, forget, get_tree, known_trees, register

__all__ = [
    "TOOLS",
    "NotFound",
    "SearchTool",
    "SourceTree",
    "cutlass",
    "definition",
    "forget",
    "get_tree",
    "grep",
    "known_trees",
    "outline",
    "read",
    "register",
    "search",
    "uses",
]
