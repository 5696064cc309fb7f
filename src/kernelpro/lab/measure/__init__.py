"""Measurement: inputs and right outputs, calls under the protocol, times and their statistics. Nothing is
decided here.

    bench.py              everything that is set up once for a task
    oracle.py, errors.py  inputs, float64 truth, errors against it
    participant.py        one side of a timing; cpu_participant.py, cuda_participant.py: its protocol
    baselines.py          the reference in several variants
    round_runner.py       interleaved rounds of single calls, sealed ones and bursts; rounds.py: their samples
    clocks.py             statistics of the two clocks; statistics.py: medians and intervals
    physics.py            ceilings of the device, floor of a task
    environment.py        hardware and versions
"""
