"""How many GPUs will I need?"""
