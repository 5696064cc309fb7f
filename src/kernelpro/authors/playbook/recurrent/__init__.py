"""Recurrent networks (LSTM, GRU, RNN) as persistent kernels.

Libraries launch kernels for every step of a sequence; here one kernel runs all steps. In: a task's graph with
one recurrent operator. Out: a candidate's source.

network.py   reads the operator, and plans how many layers one launch computes
kernel.py    writes the CUDA kernel
module.py    writes the candidate around it; torch computes all other operators
"""
