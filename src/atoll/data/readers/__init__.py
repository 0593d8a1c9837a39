"""Readers of file formats: arrays, images, tables, text, pickles, Hugging Face."""
