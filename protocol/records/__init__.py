"""Record batches (message format v2): views, decoding, building, compression."""
