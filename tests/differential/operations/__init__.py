"""What users do to a model between and during trainings, as operations of a program."""
