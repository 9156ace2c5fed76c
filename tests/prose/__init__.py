"""Checks that prose and names use Kafka's terms and plain English (docs/glossary.md)."""
