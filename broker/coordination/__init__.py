"""What coordinators have in common: a topic of their own, whose partitions' leaders hold their state.

Nothing here knows of groups or of transactions.
"""
