"""Tasks: load a reference, make its inputs on the device, count its work.

Comes in: `records.Task`. Goes out: a `Reference` that builds models and inputs from seeds.
"""
