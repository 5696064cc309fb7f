"""The playbook writes kernels without a language model: a small compiler with a search over schedules.

1. algebra/    simplifies the task's operator graph (records.Graph), each step with its reason.
2. graph/      lowers the graph to lazy values; large products and convolutions may become library calls.
3. fusion/     fuses the values into as few stages as possible.
4. ir/         defines those stages (loop nests), their expressions and index expressions: the program.
5. forms.py    makes the programs of a task: all written here, or fused around library calls.
6. schedule/   describes how a program is executed (its design), and the moves from one design to the next.
7. codegen/    holds what all backends share: printing expressions, and the Python module around a kernel.
8. cpp/, triton/, cuda/   are the backends: they write a program with a design as a candidate's source file.
9. recurrent/  writes recurrent networks, whose steps depend on each other, by a template of its own.
10. playbook.py is the author: seeds, moves chosen by findings, and simpler designs after a failure.

To add a language, write a `Backend` (codegen/backend.py) and add it to BACKENDS in playbook.py. It must write
every `Stage` as ir/stages.py defines it: reductions with and without guards, stores, scans, totals, epilogues
and products; for what it cannot write it raises NoProposal. Subclass `Printer` for the syntax, and use
`split_into_passes` and `module_source`.
"""
