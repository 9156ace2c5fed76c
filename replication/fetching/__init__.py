"""Fetchers that replicate partitions from their leaders (`ReplicaFetcherManager`)."""
