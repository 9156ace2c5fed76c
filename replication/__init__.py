"""What several nodes agree on."""
