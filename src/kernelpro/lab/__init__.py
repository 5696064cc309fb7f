"""The lab: the only part that touches hardware and untrusted code.

Input: jobs (`records.Job`). Output: results (`records.Result`). It imports only the standard library, torch
and `kernelpro.records`, so that it runs on a host where only PyTorch is installed.
"""
