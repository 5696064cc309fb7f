"""The judge: the only place that decides "correct" and "faster".

It takes a task and candidates, and returns one verdict for each. The parent process (judge.py) holds the
reference, the seeds, the tolerance and the deciding clock; the candidate runs in a sandbox (lab/sandbox) and
is measured through shared memory and messages (lab/measure).

    judge.py          the procedure, from tripwires to verdict
    decision.py       measured facts, and the decision that follows from them
    clock_policy.py   which hidden time is cheating, is charged, or widens an interval
    wording.py        the reason and the notes of a verdict
    tolerance.py      how far from the oracle an output may be
    probes.py         whether a task can be scored at all
    tripwires.py      source constructs that are rejected early
    memory_safety.py  calls with guards around buffers, which expose writes out of bounds
    unseen_shape.py   one call with a batch size that the task does not name
    own_work.py       the share of time in a candidate's own kernels
    memory_use.py     whether the candidate or the judge used up the memory
    shapes.py         one verdict for a task with several shapes
"""
