"""Fetch: sessions, log reads, purgatory of waiting fetches, and replica selection."""
