"""One partition as a broker holds it: its role, its in-sync replicas, its high watermark."""
