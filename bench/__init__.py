"""The bench: the broker measured beside its peers, over real sockets, on one machine in one run.

`model.py` has the words everything else is said in: a *workload* is run against a *target*, which a
*peer* started, and gives an *outcome*, the values of the workload's *metrics*. `peers/` are the
brokers that can be started, `workloads/` what is asked of them, `load/` the C client that drives
throughput, `limits.py` what the machine could do without any broker, `machine.py` who used the
processor meanwhile.
"""
