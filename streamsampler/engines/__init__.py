"""Where workers live: in this process, or in processes of their own."""
