"""Registry of a node's logs and log directories, and the services that log tasks share."""
