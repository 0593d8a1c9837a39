"""Figures, tables and the HTML report of finished runs."""
