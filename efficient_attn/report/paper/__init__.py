"""Figures and tables for papers."""
