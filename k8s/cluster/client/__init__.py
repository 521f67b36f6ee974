"""Talking to an API server: connection, requests, objects, watches."""
