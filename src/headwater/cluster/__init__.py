"""The operator's side of several nodes: what stands outside them and decides where each vbucket lives.

admin.py      one node, administered: states, seqnos, failover logs, maps; answers.py reads what it says
mover.py      vbuckets moved from one node to another: copied, taken over, put right when that broke off
recovery.py   what a move that broke off has left, and what to do about it, pure; settling.py asks and does it
transfer.py   one vbucket's way, in the steps of the specification
proxied.py    a proxied connection between two nodes; proxy.py and pipe.py pass its frames

map.py        who holds what; balance.py says who should, with few moves
survey.py     what all nodes are and have, and what that means; members.py asks them, and sends them maps
plan.py       what a rebalance is going to do; rebalance.py does it, with publisher.py (the map), watch.py (are copies
              level?) and repair.py (what an earlier run left open)
founding.py   the first map; failover.py: a member is dead, refusals.py: why not; promotion.py: a pair without a map
status.py     how a cluster is; streams.py: who reads from its nodes, and how far behind
work/         what operators do with all this: each kind declared once, for commands and the console's forms
"""
