"""Federations between real machines: who may take part, the processes that run, and the way in from outside.

Flower carries the messages. What it needs is in the extra ``flower``; nothing here is loaded by a simulation.
"""
