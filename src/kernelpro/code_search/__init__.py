"""Code search over CUTLASS / CuTe and any other source tree the user registers.

trees.py         source trees: location, files, path lookup
scanner.py       definitions in a file; chunks.py: how a file is split
tokenizer.py     identifiers in parts, stems, synonyms
index.py         the SQLite full-text index of a tree, in the user's cache
ranking.py       a query -> the best chunks; symbols.py: definitions, uses, outlines
line_search.py   exact text and regular expressions; grep_process.py: runs them in a process that can be
killed
queries.py       the queries: rows and text (formatting.py)
tools.py         the functions that agents call, with their JSON schemas

Input: queries. Output: text with paths and line numbers. Standard library only.
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
