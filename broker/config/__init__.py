"""Configs: the table of all configs, and what is derived from it: parsing, validation, DescribeConfigs,
alteration and docs/configuration.md."""
