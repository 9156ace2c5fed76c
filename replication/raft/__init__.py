"""The metadata quorum: who leads it, its log and snapshots, and the image that follows from them."""
