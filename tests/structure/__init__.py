"""This package measures the structure of the product's code and tests the rules that it follows."""
