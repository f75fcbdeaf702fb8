"""Embedding tables over several ranks, in pieces.

    placement.py    the pieces of the tables, and which rank holds which
"""
