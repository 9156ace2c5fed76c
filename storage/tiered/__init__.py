"""Tiered storage of one node (KIP-405): which segments the remote tier has, copying them and
reading them.

    terms              segment_metadata, errors, leader_epoch_lineage
    object storage     remote_storage_manager (interface), object_store, object_names, manifest, chunks,
                       encryption, custom_metadata, remote_storage_settings
    segment metadata   remote_log_metadata_manager (interface), remote_partition_metadata_store,
                       remote_log_metadata_cache (over segment_table, segment_row, epoch_segments),
                       metadata_records, metadata_snapshot_file, partition_summary
    copy, retention    copy_candidates, remote_retention, segment_state_machine
    reads              remote_log_reader, remote_aborted_transactions, remote_timestamp_lookup (over
                       segment_range_cache, remote_index_cache, remote_index_lookup, batch_scanner,
                       fetch_response_spill)
    checks             audit, segment_verification
"""
