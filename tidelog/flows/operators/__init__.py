"""Operators: a module for each, by the type's name; ``base`` says what they are."""
