"""Authors write kernels. Input: an assignment with a source and what is known about it. Output: a better
source.

author.py    the interface: assignments in, drafts out; by_name.py: create one from a run's configuration
team/        plan, code and debug agents with an LLM
playbook/    kernels without a model
files.py     kernels from a folder; seeded.py: torch.compile's own code first
anchors.py   the spans of a source that a plan may change
"""
