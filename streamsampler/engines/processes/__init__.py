"""Workers in processes of this machine."""
