"""Decode: reserves blocks, takes committed KV, writes the answer token by token."""
