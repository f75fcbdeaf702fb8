"""Embedding tables over several ranks, in pieces.

    pieces.py       the tables in pieces
    placement.py    which rank holds which
"""
