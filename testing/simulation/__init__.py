"""A whole cluster in one process, in virtual time, under faults, from a seed.

    run = simulate(draw_plan(seed))       # the same plan, the same run, byte for byte
    run.anomalies                         # what happened that must not; empty for a sound run

`python -m odradek.testing.simulation --seeds 0-1999` runs many, shrinks what fails and keeps it.

- `plan.py` draws from a seed what happens when; `faults.py` makes it happen;
- `cluster.py` has the nodes: real brokers behind virtual doors, that crash and start again;
- `workload.py` has the clients, who write down what they were told; `history.py` says what of it can't be;
- `checkers.py` looks into the nodes while they run, and when all is healed.
"""
