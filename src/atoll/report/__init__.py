"""Tables, figures and reports of runs."""
