"""The parts of exported files besides kernel and reference. `export` copies their text; nothing imports them.

Each file starts with a head of stand-ins for what an exported file defines above. Only the text below its cut
is copied. Exported files define `OptimizedModule` and names that start with `_guard`, so that a candidate
keeps its own names.
"""
