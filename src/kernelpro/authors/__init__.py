"""Who writes kernels. In come a source and what is known of it, out goes a better source.

tunables.py  what a candidate declares to be tuned, in comments on its constants
tuner.py     searches those declarations without an LLM
"""
