"""Segments in the remote tier (KIP-405): what one node knows of them, and how it copies and reads them.

the words          metadata, errors, lineage
the store          remote_storage (the interface), object_store with object_names, manifest, chunks and
                   encryption; opening
what it has        remote_metadata (the interface), metadata_view of partition_metadata, which is over
                   segment_table, segment_row and epoch_segments; metadata_records, metadata_file; summary
copies, deletions  sealed, copying, expiry, segment_steps
reads              remote_reads, aborted and remote_timestamps, by way of pieces, index_cache with
                   index_entries, batch_walk, response_spill, shared_calls
accounts           audit, verification
"""
