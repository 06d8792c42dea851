"""Answers drawn from rows: from where on something is faster, what it loses, what nothing beats. No drawing in here."""
