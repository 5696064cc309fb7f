"""The judge: the only place that says "correct" and "faster".

Comes in: a task and candidates. Goes out: one verdict each. The parent (judge.py) holds the reference, the
seeds, the tolerance and the deciding clock; the candidate lives in a cell (cell.py, processes.py, jail.py,
zygote.py, child.py) and meets the parent only through shared memory (memory.py) and messages (wire.py).
"""
