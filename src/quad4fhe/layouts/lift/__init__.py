"""Layout lift: one linear map of encrypted monomials. docs/lift.md has its proofs."""
