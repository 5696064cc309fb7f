"""Energy: the counters of this machine, what they resolve, and the energy of a candidate's call compared with
a baseline's.

counter.py    energy counters: NVML for a GPU, RAPL for a CPU
updates.py    polls a counter: when it was updated, with which uncertainty, and how long windows must be
window.py     measures one side in a loop
meter.py      measures candidate and baseline in alternation: an `Energy` record, or the reason why there is
              none
student.py    confidence intervals of a few windows
calibrate.py  reports what the counter of this machine can resolve
"""
