"""What is written for users is true: the README, the guides in docstrings, and the pages made of them."""
