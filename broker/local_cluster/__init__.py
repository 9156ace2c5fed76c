"""A whole cluster on one machine: who its nodes are, their processes, and how to speak to it."""
