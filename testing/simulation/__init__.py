"""A simulated cluster in one process, in virtual time, with faults that a seed decides.

    run = simulate(draw_plan(seed))       # the same plan gives the same run, byte for byte
    run.anomalies                         # violated guarantees; empty for a correct run

`python -m odradek.testing.simulation --seeds 0-1999` runs many seeds, shrinks failing plans and
saves them.

- `plan.py` draws from a seed which faults happen when; `faults.py` injects them;
- `cluster.py` has the nodes: complete brokers on virtual seams that crash and restart;
- `workload.py` has the clients, which record their requests and responses; `history.py` checks the
  record;
- `checkers.py` checks the nodes' state during the run and after recovery.
"""
