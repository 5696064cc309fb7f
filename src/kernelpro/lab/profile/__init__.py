"""Measures a candidate: what its kernels do to the device, when they run, and what their machine code is made of.

Comes in: a candidate that passed. Goes out: the records of `kernelpro.records.profiling`.
"""
