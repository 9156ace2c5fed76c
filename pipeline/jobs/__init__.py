"""What is done with topics as tables; each job is a function, and a verb of `odradek pipeline`."""
