"""The playbook writes kernels without a model. In comes a task's operator graph, out goes a candidate's file.

reading.py      the graph as a program of stages: values.py (lazy values), calls.py and the operators' files (elementwise,
                shapes, reductions, products), drafts.py (stages in the making), settling.py (loops put together)
stages.py       the program: what a writer is given; expressions.py and indices.py: what is computed, and where
design.py       how a program is carried out, as one comment line
passes.py       how a row's steps are grouped into passes, and what is kept between them
printing.py     expressions as text; frame.py: the Python file around a kernel
writer.py       what a language must offer; moves.py: what moves of all languages have in common
cpp*.py         C++ for the CPU; cuda*.py: CUDA
triton*.py      Triton for GPUs; online.py: reductions of long rows that are made in one pass
playbook.py     the author: seeds, moves chosen by findings, retreat

A new language is one `Writer` (writer.py), named in playbook.py's WRITERS. It has to turn each `Stage` of a `Program`
into loops or kernels as stages.py describes them: reductions with and without guards, stores, scans, totals and `after`,
products; what it cannot do it refuses with NoIdea. Subclass `Printer` for its words, use `passes` and `frame.candidate`.
"""
