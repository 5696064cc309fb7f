"""The sandbox: untrusted code in confined processes, and the channel to them.

launcher.py           starts processes; zygote.py forks them, jail.py confines them
process.py            one process as the parent sees it; procfs.py: processes as Linux reports them
child.py              the program of every child; *_server.py: the requests that each role serves
wire.py, memory.py    messages and shared memory; outputs.py: checks of a child's claims about its outputs
completion.py         the proof that a call on a GPU is complete; proof_kernel.py: its kernel
guards.py, *_guards.py  margins around buffers, which expose writes out of bounds
builds.py             compilers in sandboxes, ahead of time; artifacts.py: the files that they produce
gpu.py, cupti.py      the CUDA driver, NVML and CUPTI through ctypes; health.py: checks that the device works
"""
