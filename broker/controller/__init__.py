"""A node's connection to the active controller and the tasks that only the active controller runs."""
