"""What users make, and how one obtaining call runs."""
