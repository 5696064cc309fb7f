"""Measurement: inputs and right outputs, calls under the protocol, times and their statistics. The judge
decides.

    bench.py              everything that is set up once per task
    oracle.py, errors.py  inputs, float64 outputs, errors relative to them; slicing.py: slices of the batch
    loading.py            loading candidates and setting their parameters
    participant.py        one side of a timing; cpu_participant.py, cuda_participant.py: its protocol
    baselines.py          the reference in several variants
    round_runner.py       interleaved rounds of single and sealed calls and bursts; rounds.py: their samples
    clocks.py             statistics of the two clocks; statistics.py: medians and intervals
    memory_plan.py        how the device's memory is divided; turns.py: processes that take turns in it
    physics.py            ceilings of the device, floor of a task
    environment.py        hardware and versions
"""
