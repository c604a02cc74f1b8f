"""Following another node: the consumer's session, the inbound streams of replicas, dialling a producer."""
