"""Agents made of other libraries' policies. Import the module of the library that you use; each has its extra."""
