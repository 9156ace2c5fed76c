"""Decodes record batches to Arrow columns without a Python object for each record."""
