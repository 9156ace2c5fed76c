"""Clusters of real processes for tests, with proxies that inject network faults."""
