"""Suites: many problems, one table.

Comes in: a suite (ours in `own/`, a KernelBench checkout, a folder of tasks) and what is to be evaluated on it: the judge's probe,
kernels that somebody wrote, or an author. Goes out: a row for each problem, and fast_p, geomeans and costs over all of them.

    problems.py    which problems a suite has
    kernels.py     which kernel belongs to which problem
    ledger.py      what has been answered: one file of JSON lines
    asking.py      probes and judgements through a pool
    authoring.py   a run for each problem
    statistics.py  fast_p and means
    probing.py     what the probe says of each problem
    board.py       rows and summary, as data and as Markdown
    own/           our own tasks, in KernelBench's format
"""
