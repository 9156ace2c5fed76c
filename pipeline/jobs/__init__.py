"""Jobs on topics as tables; each is a function and a subcommand of `odradek pipeline`."""
