"""Histories of clients' requests and answers, and two judges of them."""
