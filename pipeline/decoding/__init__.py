"""Record batches to Arrow columns, never a Python object a record."""
