"""Parts of JSON documents by path: the work of sub-document commands on a text, independent of the node."""
