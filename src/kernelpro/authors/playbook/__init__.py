"""The playbook writes kernels without a language model: a small compiler with a search over schedules.

    operator graph --algebra/--> simpler graph --graph/--> lazy values --fusion/--> program (ir/)
    program + design (schedule/) --cpp/, triton/ or cuda/--> source file of a candidate

1. algebra/    simplifies the task's operator graph (records.Graph) and gives a reason for each rewrite.
2. graph/      the front end: lowers the graph to lazy values. Large products, convolutions and attention may
               become library calls.
3. fusion/     fuses the values into as few stages as possible.
4. ir/         the intermediate representation: a program is a list of stages, a stage is a loop nest over
               rows, and expressions say what is computed for one element.
5. forms.py    builds the programs (forms) of a task: with library calls, without, and without algebra.
6. schedule/   designs and moves: a design says how each stage is executed; a move leads to another design.
7. codegen/    what all backends share: printing expressions, and the Python module around the kernels.
8. cpp/, triton/, cuda/   the backends: each writes a program with a design as a candidate's source file.
9. recurrent/  writes recurrent networks from a template: their steps depend on each other.
10. playbook.py   the author: writes seeds, applies moves that findings suggest, simplifies what failed.

To add a language, write a `Backend` (codegen/backend.py) and add it to BACKENDS in playbook.py. It must write
every `Stage` as ir/stages.py defines it: reductions with and without guards, stores, scans, totals, epilogues
and products. It raises NoProposal for what it cannot write. Subclass `Printer` for the syntax, and use
`split_into_passes` and `module_source`.
"""
