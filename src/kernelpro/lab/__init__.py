"""The lab: the only part that touches hardware and untrusted code.

Comes in: jobs (`records.Job`). Goes out: results (`records.Result`). It imports the standard library,
torch and `kernelpro.records`, so that it runs on a host where only PyTorch is installed.
"""
