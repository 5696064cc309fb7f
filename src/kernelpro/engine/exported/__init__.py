"""The parts of exported files besides kernel and reference. `export` copies their text; nothing imports them.

Each file starts with stand-ins for names that an export defines above this part. Only the text below the line
`# --- exported below` is copied. Its names start with `_export`, so that they do not clash with a kernel's.
"""
