"""Decodes values by their schemas from a schema registry to typed Arrow columns."""
