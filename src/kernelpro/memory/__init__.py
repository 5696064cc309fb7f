"""What runs learn: within a run and across runs.

run_memory.py       within a run: attempts, errors with their fixes, facts; a digest of them for prompts
knowledge.py        across runs: which methods paid off under which conditions
shared_database.py  the SQLite file behind it: shared by processes, durable, replaced if corrupt
wording.py          recognizes the same error and the same method; summarizes plans

Input: records of what happened. Output: ranked methods and text. Nothing here depends on a model, a search or
a lab.
"""
