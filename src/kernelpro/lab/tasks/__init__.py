"""Tasks: load a reference, create its inputs on the device, count its work.

Input: `records.Task`. Output: a `Reference`, which builds models and inputs from seeds.
"""
