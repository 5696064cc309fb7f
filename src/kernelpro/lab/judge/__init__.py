"""The judge: the only place that decides "correct" and "faster".

It takes a task and candidates, and returns one verdict for each. The parent process (judge.py) holds the
reference, the seeds, the tolerance and the deciding clock; the candidate runs in a sandbox (lab/sandbox) and
is measured through shared memory and messages (lab/measure).

    judge.py          the procedure, from tripwires to verdict
    decision.py       measured facts, and the decision that follows from them
    clock_policy.py   which hidden time convicts, is charged, or widens an interval
    wording.py        a decision in words
    tolerance.py      how far from the oracle an output may be
    probes.py         whether a task can be scored at all
    tripwires.py      constructs that are rejected early
    own_work.py       the share of a candidate's own kernels
"""
