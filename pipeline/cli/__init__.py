"""`odradek pipeline`: jobs on topics as tables."""
