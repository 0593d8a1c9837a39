"""Analyse methods and models: audits, communication, attacks, features, class relations."""
