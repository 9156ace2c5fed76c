"""Segments in the remote tier (KIP-405): what one node knows of them, and how it copies and reads them."""
