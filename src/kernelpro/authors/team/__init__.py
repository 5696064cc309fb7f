"""The team: plan, code and debug agents, each with a window of its own on the run.

Comes in: an assignment. Goes out: a draft. Prompts are template files (prompts/, guides/); a name that is not filled is
an error. Who answers is the LLM layer's business: a provider, an inbox, a replay.
"""
