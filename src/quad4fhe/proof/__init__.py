"""Exact decisions, certificates and promises about new inputs, checked without the solvers of `quad4fhe.fitting`.

`exact` decides every sample in exact arithmetic. `evidence` shows that no shared quadratic can keep every decision,
`certificate` states what a fit keeps, `families` ties coefficients to models, and `verification` rechecks it all.
`guarantee` has the bounds behind promises about new inputs, `holdout` the promises themselves, and
`reliable` the margin above which decisions are kept more often.
"""
