"""What mechanisms are judged by besides cost."""
