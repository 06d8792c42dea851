"""Instruments for measuring, independent of cases."""
