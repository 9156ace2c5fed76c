"""Metadata quorum (KRaft): elections, the metadata log and snapshots, and replaying them into images."""
