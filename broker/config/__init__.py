"""The one declared table of configs, and all that is derived from it: parsing, validation,
DescribeConfigs, alteration, and docs/configuration.md."""
