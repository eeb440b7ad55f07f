"""Attention on several devices: how tokens lie on them (`layout`), and what follows from it."""
