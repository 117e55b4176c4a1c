"""Each driver runs the steps of pgfence.client.protocol on its own kind of connection."""
