"""The sandbox: untrusted code in confined processes, and the channel to them.

launcher.py           starts processes; zygote.py forks them, jail.py confines them
process.py            one process as the parent sees it; procfs.py: what Linux tells about processes
child.py              the program of every child; *_server.py: what each role serves
wire.py, memory.py    messages and shared memory; outputs.py: checks of what a child claims
guards.py, *_guards.py  margins around buffers, which show writes out of bounds
builds.py             compilers in sandboxes, ahead of time; artifacts.py: what they leave
gpu.py, cupti.py      the CUDA driver, NVML and CUPTI through ctypes; health.py: does the device still work?
"""
