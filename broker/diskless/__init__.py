"""Diskless topics of a broker (KIP-1150, KIP-1163, KIP-1164), imported only if `diskless.storage.system.enable` is
true."""
