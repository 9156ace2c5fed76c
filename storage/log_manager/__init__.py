"""All partition logs of a node: loading, creation, deletion, and background tasks."""
