"""Plots and images."""
