"""Authors write kernels. Input: an assignment, with the task, a parent and what is known about them. Output:
a draft of a candidate.

author.py      the interface: assignments in, drafts out
by_name.py     creates an author from a run's configuration
choice.py      chooses author and models from options and environment
team/          an LLM: agents that plan, code and debug
playbook/      no LLM: a compiler with a search over schedules
files.py       kernels from a folder
seeded.py      torch.compile's own code first, then another author
anchors.py     the spans of a source that a plan may change
cuda_graph.py  a candidate's kernels as one CUDA graph
"""
