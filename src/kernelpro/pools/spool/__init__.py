"""The spool: jobs and results are files, and any worker that sees the folder, or a copy of it, can run them.

`pool.py` submits jobs, `worker.py` runs them, `folder.py` is what both share: file names, leases, and which
worker may take which job. `transfer.py` carries jobs and results as one file each way.
"""
