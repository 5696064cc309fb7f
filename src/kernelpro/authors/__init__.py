"""Who writes kernels. In come a source and what is known of it, out goes a better source.

author.py    what an author is: assignments in, drafts out; by_name.py: as the command line names them
team/        plan, code and debug agents with an LLM; playbook/: none; files.py: a folder's; seeded.py: the compiler's code first
anchors.py   spans of a source that may change; nothing else may
"""
