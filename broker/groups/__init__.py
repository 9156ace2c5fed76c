"""Groups: who is in one, who owns what, and what they committed (logic without I/O; one driver)."""
