"""The broker: listeners, APIs, coordinators."""
