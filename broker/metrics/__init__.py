"""Metrics of a node: `registry.py` has the meters, timers and gauges, `metric_table.py` their names, and `endpoint.py`
serves them to Prometheus."""
