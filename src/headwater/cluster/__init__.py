"""The operator's side of several nodes: what stands outside them and decides where each vbucket lives.

admin.py      one node's administration: states, seqnos, failover logs, maps
answers.py    what nodes answer to that, as objects
"""
