"""Serving a model: who asks, and in which bytes."""
