"""The spool: jobs are files, results are files, and whoever sees the folder, or a copy of it, may work.

`pool.py` asks, `worker.py` works, `folder.py` is what both know: names, leases, and who may take what. `transfer.py`
carries jobs and results as one file each way.
"""
