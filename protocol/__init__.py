"""Bytes to messages and back: no sockets, no files, no time."""
