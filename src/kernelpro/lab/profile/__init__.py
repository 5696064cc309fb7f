"""Profiles a candidate: its hardware counters, the timeline of its kernels, and facts from its machine code.

Input: a candidate that passed. Output: the records of `kernelpro.records.profiling`.

collect.py                        collects a profile, step by step
profiling_server.py               the server in the candidate's sandboxed process
profiler_sandbox.py               runs external profilers around profiled_program.py
ncu.py, sanitizer.py              hardware counters; the location of an illegal memory access
timeline.py, trace.py             the timeline of a call
tracers.py, nsys.py               tracers: CUPTI and torch.profiler; Nsight Systems
sass.py, sass_*.py                machine code of GPU kernels
compiler_log.py, kernel_names.py  the output of nvcc and ptxas; names of kernels
cpu.py, cpu_*.py                  machine code, samples and operators on the CPU
perf_counters.py                  hardware counters of the CPU
device_properties.py              properties of the device
"""
