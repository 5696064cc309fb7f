"""Recurrent networks (LSTM, GRU, RNN) as persistent kernels.

A library launches kernels for every step of a sequence; here one kernel runs all steps. In: a task's graph
with one recurrent operator. Out: a candidate.

network.py   reads the operator and plans its launches
kernel.py    writes the kernel
module.py    writes the candidate around it: the other operators are calls of torch
"""
