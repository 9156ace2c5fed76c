"""Tiered storage of a broker (KIP-405), imported only if `remote.log.storage.system.enable` is
true."""
