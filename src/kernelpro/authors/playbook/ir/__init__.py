"""The intermediate representation, independent of the language that is written.

indices.py      index expressions over loop variables
expressions.py  what is computed for one element
stages.py       loop nests (stages) and the program they form: the input of every backend
"""
