"""Whole clusters inside a test, and what can happen to them: processes behind proxies."""
