"""Transactions: what a coordinator and the leaders of partitions say to each other, and both ends."""
