"""English constituency parsing (Section 6.3): trees, tokens, scores."""
