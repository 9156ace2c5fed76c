"""Lifecycle of a broker under the controller, from registration to controlled shutdown."""
