"""Generates docs/flights.md, a walk through the pipeline with a year of flights.

`python -m odradek.bench.flights` runs the page and updates its output and plots.
"""
