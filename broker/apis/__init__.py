"""One module a subject; each handler translates, delegates and answers."""
