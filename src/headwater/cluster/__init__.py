"""The operator's side of several nodes: programs outside of the nodes that decide where each vbucket lives.

admin.py      the administration of one node: states, seqnos, failover logs, maps; answers.py parses its answers
mover.py      vbuckets moved from one node to another: copied, taken over, repaired when that broke off
recovery.py   the state after a broken move, and its repair, without I/O; settling.py asks the nodes and repairs
transfer.py   one vbucket's way, in the steps of the specification
proxied.py    a proxied connection between two nodes; proxy.py and pipe.py pass its frames

balance.py    a map with better places, reached by few moves
survey.py     the state of all nodes, and its meaning; members.py asks the nodes, and sends them maps
plan.py       the plan of a rebalance; rebalance.py carries it out, with publisher.py (the map), watch.py (waits for
              level copies) and repair.py (finishes an earlier run)
together.py   calls to nodes at the same time, none of which outlives its caller
founding.py   the first map
failover.py   a dead member is taken out; refusals.py has the reasons against it, promotion.py is for a pair without map
status.py     the state of a cluster; streams.py has the readers of its nodes, and their lag
work/         operators' work with all this: each kind declared once, for commands and the console's forms
"""
