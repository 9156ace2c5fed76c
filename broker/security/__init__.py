"""Authorization of clients: the authorizer, its configs, and the operations that each API needs."""
