"""Summed counts -> numbers -> files and pictures."""
