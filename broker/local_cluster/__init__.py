"""Cluster of several nodes on one machine: its plan, its processes, and their supervisor."""
