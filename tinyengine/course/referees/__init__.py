"""The referees: one module for each exercise notebook, named as its lesson, with a `check_N_M` for each exercise.

A module holds, for each exercise, the solution (letter for letter that of the notebook), the table of mistakes, the
cases and the check. It is the only place that says what is right and what usually goes wrong: the check reads the table
to name a mistake, and tests/exercises/ runs each mistake as a learner's answer. How to write one: orca.py, of the parts
in exercise.py (any exercise) and watch.py (schedulers).
"""
