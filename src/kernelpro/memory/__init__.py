"""What is remembered, so that no mistake is made twice and no discovery is lost.

run_memory.py  within a run: attempts, errors with their fixes, facts; a digest of them for prompts
knowledge.py   across runs: which methods paid off where, in one file of the user's
ledger.py      the file that keeps it: shared, durable, replaced when corrupt
wording.py     when two sentences say the same

In come records of what happened, out go ranked answers and text. Nothing here knows a model, a search or a lab.
"""
