"""Listeners, client connections, and connections to other brokers."""
