"""Dispatch of requests to handlers, request contexts, and forwarding to the controller."""
