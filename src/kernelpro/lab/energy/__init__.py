"""Energy: the counters of this machine, their resolution, and the energy per call of candidate and baseline.

counter.py    energy counters: NVML for a GPU, RAPL for a CPU
updates.py    polls a counter: the times of its updates, their uncertainty, and how long windows must be
window.py     measures one side in a loop
meter.py      measures candidate and baseline in alternation; returns an `Energy` record, which has the reason
              if there is no result
student.py    confidence intervals of a few windows
calibrate.py  measures what the counter of this machine can resolve
"""
