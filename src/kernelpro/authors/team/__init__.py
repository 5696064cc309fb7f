"""Plan, code and debug agents, each with its own prompt context.

Input: an assignment. Output: a draft. Prompts are template files (prompts/, guides/); an unfilled
placeholder is an error. The LLM layer decides who answers: a provider, an inbox or a replay.
"""
