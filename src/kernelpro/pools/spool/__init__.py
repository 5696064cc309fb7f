"""The spool: jobs and results are files in a folder. Any worker that sees the folder, or a copy of it, can
run the jobs.

`pool.py` submits jobs, `worker.py` runs them. `folder.py` is shared by both: file names, leases, and which
worker may take which job. `transfer.py` carries jobs and results as one file each way.
"""
