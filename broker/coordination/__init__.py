"""Runtime, loader and log that the group and the transaction coordinator share.

Nothing in this package depends on groups or on transactions.
"""
