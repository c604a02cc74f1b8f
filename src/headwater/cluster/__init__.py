"""The operator's side of several nodes: what stands outside them and decides where each vbucket lives.

admin.py      one node, administered: states, seqnos, failover logs, maps; answers.py reads what it says
mover.py      vbuckets moved from one node to another: copied, taken over, put right when that broke off
recovery.py   what a move that broke off has left, and what to do about it, pure; settling.py asks and does it
transfer.py   one vbucket's way, in the steps of the specification
lane.py       a proxied connection between two nodes; proxy.py and passage.py pass its frames
"""
