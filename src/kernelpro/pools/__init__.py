"""Pools: where jobs run. Comes in: `records.Job`. Goes out: `records.Result`, and progress on the way."""
