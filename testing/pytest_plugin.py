"""The pytest plugin: a broker as a fixture."""
