"""Mechanisms inside pretrained models of the transformers library."""
