"""Client, connection, and controller mutation quotas."""
