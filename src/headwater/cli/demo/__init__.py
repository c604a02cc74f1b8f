"""`headwater demo`: a year of New York's flights through a node that is killed on the way, into an equal table.

command.py tells the story in order; flights.py has the documents; traffic.py changes them and knows the expected rest;
mirroring.py runs the mirror as a process of its own; samples.py measures; compare.py holds node and table side by side;
report.py draws.
"""
