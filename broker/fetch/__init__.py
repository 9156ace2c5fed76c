"""Serving Fetch: sessions, reading, waiting fetches, and replica selection."""
