"""The walk-through of docs/flights.md: a year of flights as events, tiered, and asked questions.

`python -m odradek.bench.flights` makes the page and its plots anew.
"""
