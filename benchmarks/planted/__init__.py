"""A generator of defects: healthy kernels into which defects are planted at random.

`case.py` has the record of a case and the registry of families; `cpu_*.py` and `gpu_*.py` write kernels. A
family is a healthy kernel with switches; a defect turns one of them. So every case has a healthy twin that
differs in the defect alone, and the gain that a finding predicts can be compared with the measured one.
`benchmarks/planted_defects.py` profiles cases and scores the diagnosis.
"""
