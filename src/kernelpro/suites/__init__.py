"""Suites: many problems, one table.

Input: a suite (the built-in tasks, a KernelBench checkout, a folder of tasks, or a collection of published
kernels) and what to evaluate on it: the judge's probe, kernels that exist, or an author.
Output: a row for each problem, and fast_p, geomeans and costs over all of them.

    problems.py      the problems of a suite
    kernel_files.py  which kernel belongs to which problem
    published.py     published kernels, each with its own reference
    results_log.py   the results so far: one file of JSON lines
    judging.py       probes and judgements through a pool
    compile_next.py  which problems are compiled and built ahead
    design_writers.py  processes that write their designs
    searching.py     a search run for each problem
    statistics.py    fast_p and means
    probe.py         what the probe reports for each problem
    scoreboard.py    rows and summary, as data and as Markdown
    claims.py        published kernels: claimed beside measured
    builtin/         the built-in tasks, in KernelBench's format
"""
