"""Values by their schemas: what a schema registry says bytes are, as typed Arrow columns."""
