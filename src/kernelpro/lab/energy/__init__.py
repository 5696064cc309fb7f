"""Joules: the counters of this machine, what they resolve, and what a call of a candidate costs beside a baseline's.

counter.py    where joules are counted: NVML for a GPU, RAPL for a CPU
track.py      a counter watched: the moments at which it moved, how finely that was seen, how long windows must be
window.py     one side called again and again under the parent's eyes
meter.py      candidate and baseline in turn, idle before and after: an `Energy` record, or the reason why there is none
calibrate.py  what the counter of this machine can do
"""
