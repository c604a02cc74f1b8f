"""Histories of what clients asked and were answered, and two judges of them."""
