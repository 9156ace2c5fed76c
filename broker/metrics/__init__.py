"""What a node measures of itself, and how it is asked: `registry.py` is where rooms put their numbers,
`table.py` what these are called, `endpoint.py` where Prometheus reads them."""
