"""What exported files consist of besides kernel and reference: `export` copies the text of these files, nothing imports them.

Each begins with a head, in which stand-ins take the places of what an exported file has above; what is below its cut is copied.
Exported files bind `Optimized` and names that begin with `_guard`, so that a candidate's own names stay as they are.
"""
