"""What a node fetches from the brokers that lead its followed partitions."""
