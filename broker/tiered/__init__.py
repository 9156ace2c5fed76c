"""Tiered storage in a broker (KIP-405): loaded where `remote.log.storage.system.enable` is true alone."""
