"""The replicas of this node: their logs, their roles, and what the broker reports of them to the controller."""
