"""Request handlers, one module per subject: they translate the request, delegate and build the response."""
