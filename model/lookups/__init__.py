"""What embedding look-ups read: ids, rows, sectors, bytes (reads.py), and the pictures of them (drawing.py)."""
