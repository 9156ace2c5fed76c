"""The command line `odradek`: one module a command, imported only when that command is run."""
