"""What the cluster is: an image built from metadata records, and the operations that decide them."""
