"""Profiles a candidate: what its kernels do to the device, when they run, and what their machine code
contains.

Input: a candidate that passed. Output: the records of `kernelpro.records.profiling`.

collect.py             collects a profile, step by step
profiling_server.py    the server in the candidate's sandboxed process
profiler_sandbox.py    runs external profilers; profiled_program.py is the program that they run ncu.py,
sanitizer.py   hardware counters; the location of an illegal memory access timeline.py, trace.py  the timeline
of a call, from the tracers in tracers.py (CUPTI, torch.profiler) and nsys.py sass.py, sass_*.py     machine
code of GPU kernels; compiler_log.py, kernel_names.py cpu.py, cpu_*.py       machine code, samples and
operators on the CPU; perf_counters.py
device_properties.py   properties of the device
"""
