"""Brokers inside a test: fixtures, faults, virtual seams."""
