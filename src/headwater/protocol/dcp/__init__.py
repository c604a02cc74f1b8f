"""DCP and UPR: consumer, producer, streams, positions and the rules both ends share."""
