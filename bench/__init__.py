"""Benchmarks: compares the broker with other brokers (peers) over real sockets, on one machine in one run.

`model.py` defines the terms: a *workload* runs against a *target*, which a *peer* started, and returns an *outcome*
with the values of the workload's *metrics*. `peers/` starts the brokers, `workloads/` has the workloads, `load/` is
the C client, `limits.py` measures physical limits without a broker, and `machine.py` measures the CPU use of other
processes.
"""
