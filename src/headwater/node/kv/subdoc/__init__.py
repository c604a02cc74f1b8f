"""Parts of JSON documents by path: the work of sub-document commands on a text, without a node around it."""
