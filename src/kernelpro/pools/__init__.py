"""Pools: where jobs run. A pool takes a `records.Job`, reports progress, and returns a `records.Result`."""
