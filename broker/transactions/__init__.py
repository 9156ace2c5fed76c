"""Transaction coordinator, transaction markers, and verification of partitions by their leaders."""
