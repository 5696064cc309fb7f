"""The parts of exported files besides kernel and reference. `export` copies their text; nothing imports them.

Each file starts with a head of stand-ins for what an export defines above. Only the text below its cut is
copied. Names start with `_export`, so that a kernel keeps its own names.
"""
