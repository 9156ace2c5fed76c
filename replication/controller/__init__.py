"""Controller state: metadata images built from records, and the operations that return records."""
